/* Recipes. What the I/O thread holds while one runs is the release itself, which does not go before its end. */
#include "http/recipe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/core.h"
#include "http/fetch.h"
#include "http/peek.h"

#define ANSWER_MOST (4u << 20)
#define PATIENCE 15000000000ull /* ns without an answer */
#define VALUE_MOST 128

struct sb_recipe {
    struct sb_object object;
    struct sb_port *port;
    enum sb_recipe_what what;
    struct sb_slice *headers;
    size_t header_count;
    char *find, *mark, *key, *prefix, *suffix, *early;
    _Atomic(char *) target;
    /* [io] while it runs */
    struct sb_release *running;
    struct sb_fetch *fetch; /* until it has told */
    struct sb_timer patience;
};

static void free_memory(struct sb_recipe *recipe)
{
    for (size_t i = 0; recipe->headers != NULL && i < recipe->header_count; i++) {
        char *line = (char *)(uintptr_t)recipe->headers[i].data; /* ours */
        if (line != NULL)
            explicit_bzero(line, recipe->headers[i].len);
        free(line);
    }
    free(recipe->headers);
    free(recipe->find);
    free(recipe->mark);
    free(recipe->key);
    free(recipe->prefix);
    free(recipe->suffix);
    free(recipe->early);
    free(recipe->target);
    sb_object_unref(recipe->port);
    free(recipe);
}

static void destroy(struct sb_object *object)
{
    free_memory((struct sb_recipe *)object);
}

const struct sb_object_type sb_recipe_type = {"recipe", destroy};

/* ---- running ---- */

static void finish(struct sb_recipe *recipe, const struct sb_error *err)
{
    struct sb_release *release = recipe->running;
    recipe->running = NULL;
    recipe->fetch = NULL;
    sb_timer_clear(&recipe->patience);
    sb_release_finish(release, err);
}

/* A success that is none of the vendor's: it writes JSON, or nothing. */
static int is_page(const struct sb_answered *answer)
{
    char first = sb_peek_first(answer->body, answer->body_len);
    return first != '\0' && first != '{' && first != '[';
}

/* Did the vendor itself say that there is no such thing? Of a key it says so in plain text. */
static int is_missing(const struct sb_recipe *recipe, const struct sb_answered *answer)
{
    static const char no_key[] = "id not found";
    size_t n = sizeof no_key - 1;
    return answer->status == 404 && (sb_peek_has_code(404, answer->body, answer->body_len) ||
                                     (recipe->what == SB_RECIPE_KEY && answer->body_len >= n &&
                                      memcmp(answer->body, no_key, n) == 0));
}

/* What an answer means to somebody who wants the thing to be gone; 0: that it is. */
static int judge(const struct sb_recipe *recipe, const struct sb_answered *answer,
                 struct sb_error *err)
{
    *err = (struct sb_error){0};
    if (answer->error != NULL) {
        *err = *answer->error;
        if (err->kind == SB_ERR_OUTCOME_UNKNOWN || err->kind == SB_ERR_PROTOCOL)
            err->kind = SB_ERR_UNAVAILABLE; /* deleting may be tried again */
        return -1;
    }
    if ((answer->status / 100 == 2 && !is_page(answer)) || is_missing(recipe, answer))
        return 0;
    int is_used = answer->status == 409 || /* or sandboxes stand on it */
                  (answer->status == 400 && recipe->what == SB_RECIPE_SNAPSHOT);
    enum sb_err kind = answer->status == 401   ? SB_ERR_UNAUTHENTICATED
                       : answer->status == 403 ? SB_ERR_PERMISSION_DENIED
                       : is_used               ? SB_ERR_BUSY
                       : answer->status / 100 == 2 || answer->status == 404 ||
                               answer->status == 429 || answer->status / 100 == 5
                           ? SB_ERR_UNAVAILABLE /* a stranger's perhaps, on the way there */
                           : SB_ERR_PROTOCOL;
    sb_fail(err, kind, "the answer is %ld", answer->status);
    return -1;
}

static void not_seen(struct sb_recipe *recipe)
{
    struct sb_error err;
    sb_fail(&err, SB_ERR_UNAVAILABLE, "it was asked for, and there is no sign of it yet");
    finish(recipe, &err);
}

static void on_early(void *arg, const struct sb_answered *answer)
{
    struct sb_recipe *recipe = arg;
    struct sb_error err;
    if (is_missing(recipe, answer))
        not_seen(recipe);
    else
        finish(recipe, judge(recipe, answer, &err) == 0 ? NULL : &err);
}

static void on_deleted(void *arg, const struct sb_answered *answer)
{
    struct sb_recipe *recipe = arg;
    struct sb_error err;
    finish(recipe, judge(recipe, answer, &err) == 0 ? NULL : &err);
}

static int ask(struct sb_recipe *recipe, const char *method, const char *target,
               void (*told)(void *arg, const struct sb_answered *answer), struct sb_error *err)
{
    struct sb_request request = {
        .method = {method, strlen(method)},
        .target = {target, strlen(target)},
        .headers = recipe->headers,
        .header_count = recipe->header_count,
        .max_body = ANSWER_MOST,
    };
    sb_timer_set(&recipe->patience, sb_now() + PATIENCE);
    recipe->fetch = sb_fetch_told(recipe->port, &request, told, recipe, err);
    return recipe->fetch != NULL ? 0 : -1;
}

static int delete_it(struct sb_recipe *recipe, const char *target, struct sb_error *err)
{
    return ask(recipe, "DELETE", target, on_deleted, err);
}

/* The value of `key` in the first entry of the list that holds the mark: who was asked may have answered with more
 * than what was asked for. 0: there is none. */
static size_t find_marked(const struct sb_recipe *recipe, const char *at, size_t len, char *value)
{
    if (recipe->mark == NULL || sb_peek_first((const unsigned char *)at, len) != '[')
        return 0;
    const char *end = at + len, *entry;
    size_t entry_len = 0, n = 0;
    for (; n == 0 && (entry = sb_peek_entry(at, end, &entry_len)) != NULL; at = entry + entry_len)
        if (memmem(entry, entry_len, recipe->mark, strlen(recipe->mark)) != NULL)
            n = sb_peek_name(recipe->key, entry, entry_len, value, VALUE_MOST);
    return n;
}

static void on_found(void *arg, const struct sb_answered *answer)
{
    struct sb_recipe *recipe = arg;
    struct sb_error err;
    char value[VALUE_MOST + 1], *target;
    recipe->fetch = NULL;
    if (judge(recipe, answer, &err) < 0) {
        finish(recipe, &err);
        return;
    }
    if (find_marked(recipe, (const char *)answer->body, answer->body_len, value) == 0) {
        not_seen(recipe);
        return;
    }
    if (asprintf(&target, "%s%s%s", recipe->prefix, value, recipe->suffix) < 0) {
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        finish(recipe, &err);
        return;
    }
    if (delete_it(recipe, target, &err) < 0)
        finish(recipe, &err);
    free(target);
}

static void on_patience(struct sb_timer *timer)
{
    struct sb_recipe *recipe = SB_OF(timer, struct sb_recipe, patience);
    if (recipe->fetch != NULL)
        sb_fetch_give_up(recipe->fetch); /* which tells */
}

static void run(struct sb_release *release, void *data)
{
    struct sb_recipe *recipe = data;
    struct sb_error err = {0};
    char *target = recipe->target;
    recipe->running = release;
    recipe->patience.fire = on_patience;
    int rc = target != NULL          ? delete_it(recipe, target, &err)
             : recipe->early != NULL ? ask(recipe, "DELETE", recipe->early, on_early, &err)
             : recipe->find != NULL  ? ask(recipe, "GET", recipe->find, on_found, &err)
                                     : 1;
    if (rc != 0)
        finish(recipe, rc < 0 ? &err : NULL);
}

static void let_go(void *data)
{
    sb_object_unref(data);
}

/* ---- making ---- */

static int copy_lines(struct sb_recipe *recipe, const struct sb_recipe_options *options)
{
    recipe->headers = calloc(options->header_count + 1, sizeof *recipe->headers);
    if (recipe->headers == NULL)
        return -1;
    for (size_t i = 0; i < options->header_count; i++) {
        char *line = malloc(options->headers[i].len + 1);
        if (line == NULL)
            return -1;
        memcpy(line, options->headers[i].data, options->headers[i].len);
        recipe->headers[i] = (struct sb_slice){line, options->headers[i].len};
        recipe->header_count++;
    }
    return 0;
}

static int copy_texts(struct sb_recipe *recipe, const struct sb_recipe_options *options)
{
    const char *from[] = {options->find,   options->mark,   options->key,
                          options->prefix, options->suffix, options->early};
    char **to[] = {&recipe->find,   &recipe->mark,   &recipe->key,
                   &recipe->prefix, &recipe->suffix, &recipe->early};
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
        *to[i] = from[i] != NULL ? strdup(from[i]) : NULL;
        if (from[i] != NULL && *to[i] == NULL)
            return -1;
    }
    return 0;
}

struct sb_recipe *sb_recipe_new(struct sb_port *port, const struct sb_recipe_options *options,
                                struct sb_release **release, struct sb_error *err)
{
    static const struct sb_release_type types[] = {
        [SB_RECIPE_SANDBOX] = {"sandbox", run, let_go},
        [SB_RECIPE_KEY] = {"API key", run, let_go},
        [SB_RECIPE_SNAPSHOT] = {"snapshot", run, let_go},
    };
    struct sb_recipe *recipe = calloc(1, sizeof *recipe);
    if (recipe == NULL)
        goto no_memory;
    sb_object_init(&recipe->object, &sb_recipe_type);
    recipe->port = sb_object_ref(port);
    recipe->what = options->what;
    if (copy_lines(recipe, options) < 0 || copy_texts(recipe, options) < 0) {
        sb_object_unref(recipe);
        goto no_memory;
    }
    *release = sb_release_new(&types[options->what], sb_object_ref(recipe), options->id);
    if (*release != NULL)
        return recipe;
    sb_object_unref(recipe); /* the release's */
    sb_object_unref(recipe);
no_memory:
    sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    return NULL;
}

int sb_recipe_bind(struct sb_recipe *recipe, const char *target)
{
    char *copy = strdup(target), *none = NULL;
    if (copy == NULL)
        return -1;
    if (!atomic_compare_exchange_strong(&recipe->target, &none, copy))
        free(copy);
    return 0;
}
