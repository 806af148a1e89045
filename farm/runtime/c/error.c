/* See error.h. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

#include "farm.h"

#define MESSAGE_BYTES 2048

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
static _Thread_local char message[MESSAGE_BYTES], raw[MESSAGE_BYTES];
#else
static char message[MESSAGE_BYTES], raw[MESSAGE_BYTES];
#endif

const char *farm_error(void) { return message; }

int farm_fail(const char *format, ...) {
    static const char digits[] = "0123456789abcdef";
    const unsigned char *from = (const unsigned char *)raw;
    char *to = message;
    va_list values;
    va_start(values, format);
    vsnprintf(raw, sizeof raw, format, values);
    va_end(values);
    for (; *from && to < message + sizeof message - 5; from++) {
        if (*from >= ' ' && *from <= '~') {
            *to++ = (char)*from;
        } else {
            *to++ = '\\';
            *to++ = 'x';
            *to++ = digits[*from >> 4];
            *to++ = digits[*from & 15];
        }
    }
    *to = 0;
    return -1;
}
