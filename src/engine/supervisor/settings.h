/* Where the settings of new namespaces are written. */
#ifndef SB_SETTINGS_H
#define SB_SETTINGS_H

#include "sup.h"

int sb_settings_start(struct sb_failure *f);
/* The root of a proc file system: whoever writes below its sys sets the limits of the namespaces that he
 * lives in himself. */
int sb_settings_dir(void);
void sb_settings_used(void); /* for one more set of namespaces */

#endif
