/* Who has which of root's id ranges, among the supervisors of all state roots of this machine. */
#ifndef SB_RANGE_H
#define SB_RANGE_H

#include "sup.h"

/* Takes a range for this supervisor: false when another one has it, or a sandbox of one that has died
 * still runs in it. Without the common file (/run/sandbar/ranges) every range can be had. */
bool sb_range_take(int range);
void sb_range_keep(int range); /* of an adopted sandbox: it has it already */
void sb_range_give(int range);
/* Who runs in it: so that the range stays taken while there is no supervisor to hold it. */
void sb_range_note(int range, const struct sb_ident *pid1);

#endif
