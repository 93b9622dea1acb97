// SPDX-License-Identifier: Apache-2.0
// Since glibc 2.38 its headers make calls of these of strtol and its like, so objects and archives
// from Ubuntu 24.04 want them. The older functions do the same, but for numbers in base 2 with a
// prefix.
#include <stdarg.h>
#include <stdio.h>

// By their names in the library, whatever the headers of this machine make of them.
long old_strtol(const char*, char**, int) __asm__("strtol");
long long old_strtoll(const char*, char**, int) __asm__("strtoll");
unsigned long old_strtoul(const char*, char**, int) __asm__("strtoul");
unsigned long long old_strtoull(const char*, char**, int) __asm__("strtoull");
int old_vsscanf(const char*, const char*, va_list) __asm__("__isoc99_vsscanf");
int old_vfscanf(FILE*, const char*, va_list) __asm__("__isoc99_vfscanf");

long __isoc23_strtol(const char* text, char** end, int base) { return old_strtol(text, end, base); }
long long __isoc23_strtoll(const char* text, char** end, int base) {
  return old_strtoll(text, end, base);
}
unsigned long __isoc23_strtoul(const char* text, char** end, int base) {
  return old_strtoul(text, end, base);
}
unsigned long long __isoc23_strtoull(const char* text, char** end, int base) {
  return old_strtoull(text, end, base);
}

int __isoc23_sscanf(const char* text, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int found = old_vsscanf(text, format, values);
  va_end(values);
  return found;
}

int __isoc23_fscanf(FILE* file, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int found = old_vfscanf(file, format, values);
  va_end(values);
  return found;
}
