/* What earlier supervisors left. */
#ifndef SB_ADOPT_H
#define SB_ADOPT_H

/* Reads every record: adopts what lives, marks what died, removes what was only half made. */
void sb_adopt_all(void);
struct sb_box;
/* Connects to its pid 1, which says hello then. Where that fails there is no `guest`. */
void sb_adopt_reach(struct sb_box *b);

#endif
