/* The libraries that came with this one. */
#ifndef SB_HTTP_LIBRARIES_H
#define SB_HTTP_LIBRARIES_H

/* What has been read of them so far and is not needed again leaves memory: when they have been bound, and when they have
 * begun. */
void sb_libraries_settle(void);

#endif
