/* The supervisor's error idiom: functions return 0 or -1 and describe the failure in a last
 * parameter. Kinds are the contract's names, because they go to the wire as they are. */
#ifndef SB_FAIL_H
#define SB_FAIL_H

/* Plain data. `step` is a literal or lives in a struct that outlives the failure. */
struct sb_failure {
    const char *kind; /* NULL: nothing failed */
    int err;          /* errno behind it, 0 if none */
    const char *step;
    char message[200];
};

/* Fills *f and returns -1. A NULL kind is derived from `err`, whose text is appended. */
int sb_failed(struct sb_failure *f, const char *kind, int err, const char *step, const char *fmt,
              ...) __attribute__((format(printf, 5, 6)));
/* The same with errno as it stands and the kind it means. */
int sb_failed_errno(struct sb_failure *f, const char *step, const char *what);

#endif
