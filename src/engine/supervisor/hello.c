#include "hello.h"

#include <stdio.h>
#include <unistd.h>

#include "cgroup.h"
#include "disk.h"
#include "limits.h"
#include "netplace.h"
#include "relays.h"

int sb_hello(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f)
{
    static const char *const mode[] = {"root", "subids", "single"};
    uint64_t version = sb_read_u64(&in->fields, SB_F_VERSION, 0);
    /* A newer peer serves its predecessor, so that one version more is no obstacle. */
    if (version == 0 || version + 1 < SB_PROTO_VERSION || version > SB_PROTO_VERSION + 1)
        return sb_failed(f, "Unsupported", 0, "hello",
                         "the running supervisor (process %d) speaks protocol version %d and does "
                         "not serve version %llu",
                         (int)getpid(), SB_PROTO_VERSION, (unsigned long long)version);
    c->greeted = true;
    sup.linger_ms = sb_read_u64(&in->fields, SB_F_LINGER_MS, sup.linger_ms);
    struct sb_packer p;
    sb_conn_begin(&p, SB_REPLY, in->head.req);
    sb_pack_u64(&p, SB_F_VERSION, SB_PROTO_VERSION);
    sb_pack_u64(&p, SB_F_RELEASE, SB_RELEASE);
    sb_pack_u64(&p, SB_F_PID, (uint64_t)getpid());
    sb_pack_str(&p, SB_F_MODE_NAME, mode[sup.mode]);
    sb_pack_str(&p, SB_F_CAP, sb_cgroup_have() ? "tree_kill=exact" : "tree_kill=descendants");
    sb_pack_str(&p, SB_F_CAP, "limit_processes");
    sb_pack_str(&p, SB_F_CAP,
                sb_cgroup_have() ? "survives_service_stop" : "survives_service_stop=false");
    sb_pack_str(&p, SB_F_CAP, sup.mode == SB_MODE_SINGLE ? "setuid=false" : "setuid");
    if (sup.mode == SB_MODE_SINGLE && sup.groups[0] != '\0') {
        char text[sizeof sup.groups + 24];
        snprintf(text, sizeof text, "supplementary_groups=%s", sup.groups);
        sb_pack_str(&p, SB_F_CAP, text);
        sb_pack_str(&p, SB_F_CAP, "privilege_isolated=false");
    }
    struct sb_field_view v;
    bool all = sb_read_find(&in->fields, SB_F_NETWORK, &v); /* what takes a trial, too */
    if (all && sb_limits_can(SB_BOUND_MEMORY)) {
        sb_pack_str(&p, SB_F_CAP, "limit_memory");
        sb_pack_str(&p, SB_F_CAP, "oom_reported");
    }
    if (all && sb_limits_can(SB_BOUND_CPU))
        sb_pack_str(&p, SB_F_CAP, "limit_cpu");
    if (all && sb_disk_can())
        sb_pack_str(&p, SB_F_CAP, "limit_disk");
    if (all && sb_netplace_works()) {
        sb_pack_str(&p, SB_F_CAP, "name_rules");
        sb_pack_str(&p, SB_F_CAP, "deny_over_allow");
        sb_pack_str(&p, SB_F_CAP, "udp");
        sb_pack_str(&p, SB_F_CAP, "inject_http");
        if (sb_tlsrelay_works())
            sb_pack_str(&p, SB_F_CAP, "inject_https");
    }
    sb_conn_send(c, &p, NULL, 0);
    return 0;
}
