#include "text.h"

size_t text_next(const char *at, uint32_t *ret_code) {
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)at;
    size_t more = *p < 0x80 ? 0 : *p < 0xC0 ? 9 : *p < 0xE0 ? 1 : *p < 0xF0 ? 2 : *p < 0xF8 ? 3 : 9;
    *ret_code = more == 0 ? *p : TEXT_NOT_UTF8;
    if (more == 0 || more == 9) return 1;
    uint32_t code = *p & (0x3Fu >> more);
    for (size_t i = 1; i <= more; i++) {
        if ((p[i] & 0xC0) != 0x80) return 1;
        code = code << 6 | (p[i] & 0x3F);
    }
    if (code < least[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return 1;
    *ret_code = code;
    return more + 1;
}

bool text_valid(const char *text) {
    for (uint32_t code; *text;) {
        text += text_next(text, &code);
        if (code == TEXT_NOT_UTF8) return false;
    }
    return true;
}

bool text_plain(uint32_t code) {
    if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return false;
    if (code == 0x61C || code == 0x200E || code == 0x200F) return false;
    return !(code >= 0x2028 && code <= 0x202E) && !(code >= 0x2066 && code <= 0x2069) && code != TEXT_NOT_UTF8;
}
