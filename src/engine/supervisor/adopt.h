/* What earlier supervisors left. */
#ifndef SB_ADOPT_H
#define SB_ADOPT_H

struct sb_box;
struct sb_failure;

/* Reads every record: adopts what lives, marks what died, removes what was only half made. -1: there are too few
 * descriptors or too little memory for that; what has not been looked at is as it was. */
int sb_adopt_all(struct sb_failure *f);
/* Connects to its pid 1, which says hello then. Where that fails there is no `guest`. */
void sb_adopt_reach(struct sb_box *b);

#endif
