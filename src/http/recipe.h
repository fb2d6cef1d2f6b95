/* A release that is an HTTP request: a thing on the other side is deleted by the I/O thread, on every path out, when no
 * Lua runs any more.
 *
 * A recipe is made before the thing is asked for, so that there is no moment at which it exists without a release.
 * Until it is bound to a target it looks the thing up: `find` is asked for, and in the JSON list that comes the entry
 * that holds `mark` has under `key` what is deleted below `prefix`. A thing that has its name before it is there is
 * deleted by that, `early`. Nothing found is no success: the thing may be on its way. */
#ifndef SB_HTTP_RECIPE_H
#define SB_HTTP_RECIPE_H

#include "http/http.h"
#include "runtime/release.h"

enum sb_recipe_what { SB_RECIPE_SANDBOX, SB_RECIPE_KEY, SB_RECIPE_SNAPSHOT };

struct sb_recipe_options {
    const char *id;                 /* for reports */
    enum sb_recipe_what what;       /* is deleted */
    const struct sb_slice *headers; /* "Name: value" lines of every request */
    size_t header_count;
    const char *find;   /* GET target, NULL: there is nothing to look for before it is bound */
    const char *mark;   /* a text that only the thing's own entry has; with `find` */
    const char *key;    /* "sandboxID" */
    const char *prefix; /* "/sandboxes/" */
    const char *suffix; /* behind the value of `key`, "" */
    const char *early;  /* DELETE target before it is bound, instead of `find`, or NULL */
};

struct sb_recipe;
extern const struct sb_object_type sb_recipe_type;

/* Copies; references the port. *release gets a reference of the release. */
struct sb_recipe *sb_recipe_new(struct sb_port *port, const struct sb_recipe_options *options,
                                struct sb_release **release, struct sb_error *err);
/* From now on DELETE `target` is all there is to do. Any thread, once; 0 or -1: out of memory. */
int sb_recipe_bind(struct sb_recipe *recipe, const char *target);

#endif
