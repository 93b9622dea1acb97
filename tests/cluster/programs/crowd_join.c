/* SPDX-License-Identifier: Apache-2.0
 * crowd-join SOCKET HOST: in place of a way to a host (--rsh), brings its stdin, which is the
 * stream's socket, to fake_crowd.cc. Small, as there are a thousand of it. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The launcher's script, which ends with its call of `dtrain`. Nothing follows it until it is
 * answered. */
static int read_script(void) {
  static char text[1 << 20];
  size_t length = 0;
  while (length < sizeof(text)) {
    const ssize_t n = read(0, text + length, sizeof(text) - length);
    if (n <= 0) return -1;
    length += (size_t)n;
    if (text[length - 1] != '\n') continue;
    size_t begin = length - 1;
    while (begin > 0 && text[begin - 1] != '\n') --begin;
    if (strncmp(text + begin, "dtrain ", 7) == 0) return 0;
  }
  return -1;
}

static int bring(const char* path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec piece = {&byte, 1};
  struct msghdr message = {.msg_iov = &piece,
                           .msg_iovlen = 1,
                           .msg_control = control,
                           .msg_controllen = sizeof(control)};
  struct cmsghdr* header = CMSG_FIRSTHDR(&message);
  const int crowd = socket(AF_UNIX, SOCK_STREAM, 0), stream = 0;
  if (crowd < 0 || strlen(path) >= sizeof(address.sun_path)) return -1;
  strcpy(address.sun_path, path);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &stream, sizeof(stream));
  if (connect(crowd, (struct sockaddr*)&address, sizeof(address)) != 0) return -1;
  if (sendmsg(crowd, &message, MSG_NOSIGNAL) != 1) return -1;
  return read(crowd, &byte, 1) == 0 ? 0 : -1; /* it has it */
}

int main(int argc, char** argv) {
  if (argc < 2 || read_script() != 0 || bring(argv[1]) != 0) {
    perror("crowd-join");
    return 1;
  }
  return 0;
}
