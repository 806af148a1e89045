/* Messages of errors. Internal: programs include farm.h. */
#ifndef FARM_ERROR_H
#define FARM_ERROR_H

/* Sets the message of farm_error() and returns -1. Bytes that are not printable ASCII are shown as \xNN: names come from
 * files, and messages go to terminals. An argument may be farm_error() itself. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
int farm_fail(const char *format, ...);

/* Leaves a function at an error, whose message is set. */
#define TRY(call)                   \
    do {                            \
        if ((call) != 0) return -1; \
    } while (0)

#endif
