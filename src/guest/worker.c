#include "worker.h"
int worker_reaped(int pid, int status) { (void)pid; (void)status; return 0; }
void worker_forget(struct conn *c) { (void)c; }
void worker_stop_all(void) {}
void worker_request(struct request *r) { conn_error(r->conn, r->head.req, "Unsupported", 0, NULL, "not yet", NULL); }
