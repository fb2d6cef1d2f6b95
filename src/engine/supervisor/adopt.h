/* What earlier supervisors left. */
#ifndef SB_ADOPT_H
#define SB_ADOPT_H

/* Reads every record: adopts what lives, marks what died, removes what was only half made. */
void sb_adopt_all(void);

#endif
