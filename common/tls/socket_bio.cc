// SPDX-License-Identifier: Apache-2.0
#include "common/tls/socket_bio.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>

namespace dtrain::tls {
namespace {

int FdOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

bool MayTryAgain(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

int Write(BIO* bio, const char* data, size_t size, size_t* done) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = send(FdOf(bio), data, size, MSG_NOSIGNAL);
  if (n < 0 && MayTryAgain(errno)) BIO_set_retry_write(bio);
  *done = n > 0 ? static_cast<size_t>(n) : 0;
  return n > 0 ? 1 : 0;
}

int Read(BIO* bio, char* data, size_t size, size_t* done) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = recv(FdOf(bio), data, size, 0);
  if (n < 0 && MayTryAgain(errno)) BIO_set_retry_read(bio);
  if (n == 0) {
    BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    errno = 0;
  }
  *done = n > 0 ? static_cast<size_t>(n) : 0;
  return n > 0 ? 1 : 0;
}

long Control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
  return 0;
}

BIO_METHOD* MakeMethod() {
  BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "dtrain socket");
  if (method == nullptr) return nullptr;
  BIO_meth_set_write_ex(method, Write);
  BIO_meth_set_read_ex(method, Read);
  BIO_meth_set_ctrl(method, Control);
  return method;
}

}  // namespace

UniqueBio MakeSocketBio(int fd) {
  // Lives as long as the process: connections may end at its very end.
  static BIO_METHOD* const method = MakeMethod();
  if (method == nullptr) return nullptr;
  UniqueBio bio(BIO_new(method));
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio.get(), reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio.get(), 1);
  return bio;
}

}  // namespace dtrain::tls
