/* Timers as a pairing heap whose nodes are the timers themselves: setting one never allocates.
 *
 *   root -> child -> next -> next      every child is due no earlier than its parent;
 *                  <- prev <- prev     `prev` of a first child is its parent, of the root NULL
 */
#include "timer.h"

#include <stddef.h>

static struct sb_timer *root;

static struct sb_timer *meld(struct sb_timer *a, struct sb_timer *b)
{
    if (a == NULL)
        return b;
    if (b == NULL)
        return a;
    if (b->at < a->at) {
        struct sb_timer *t = a;
        a = b;
        b = t;
    }
    b->prev = a;
    b->next = a->child;
    if (a->child != NULL)
        a->child->prev = b;
    a->child = b;
    return a;
}

/* Melds a list of siblings into one heap: in pairs from the front, then the pairs from the back. */
static struct sb_timer *meld_siblings(struct sb_timer *first)
{
    struct sb_timer *pairs = NULL, *heap = NULL;
    while (first != NULL) {
        struct sb_timer *a = first, *b = a->next;
        first = b != NULL ? b->next : NULL;
        a->next = a->prev = NULL;
        if (b != NULL)
            b->next = b->prev = NULL;
        a = meld(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs != NULL) {
        struct sb_timer *a = pairs;
        pairs = a->next;
        a->next = NULL;
        heap = meld(heap, a);
    }
    if (heap != NULL)
        heap->prev = NULL;
    return heap;
}

void sb_timer_clear(struct sb_timer *timer)
{
    if (!timer->set)
        return;
    if (timer == root) {
        root = meld_siblings(timer->child);
    } else {
        if (timer->prev->child == timer)
            timer->prev->child = timer->next;
        else
            timer->prev->next = timer->next;
        if (timer->next != NULL)
            timer->next->prev = timer->prev;
        root = meld(root, meld_siblings(timer->child));
    }
    timer->child = timer->next = timer->prev = NULL;
    timer->set = 0;
}

void sb_timer_set(struct sb_timer *timer, uint64_t at)
{
    sb_timer_clear(timer);
    timer->at = at;
    if (at == SB_NEVER)
        return;
    timer->child = timer->next = timer->prev = NULL;
    timer->set = 1;
    root = meld(root, timer);
}

uint64_t sb_timers_next(void)
{
    return root != NULL ? root->at : SB_NEVER;
}

/* Bounded, so that a timer which sets itself again for a moment that is past starves nobody. */
void sb_timers_fire(uint64_t now)
{
    for (int left = 1000; left > 0 && root != NULL && root->at <= now; left--) {
        struct sb_timer *timer = root;
        sb_timer_clear(timer);
        timer->fire(timer);
    }
}

void sb_timers_forget(void)
{
    root = NULL;
}
