// SPDX-License-Identifier: Apache-2.0
// Which list of revoked nodes a launcher reads.
#include <unistd.h>

#include "launcher/transport/tcp_transport.h"
#include "tests/component/transport/harness.h"

namespace dtrain::transport {
namespace {

class RevocationListTest : public TransportTest {
 protected:
  RevocationListTest() { WriteFile(dir_ / "user.crt", "", 0600); }
  std::string Crl() {
    auto options = UserTcpOptions(dir_.path(), 0);
    EXPECT_TRUE(options.ok()) << options.status();
    return options.ok() ? options->tls.crl : "";
  }
};

TEST_F(RevocationListTest, TheOneThatIsThere) {
  EXPECT_EQ(Crl(), "");
  WriteFile(dir_ / "crl.pem", "", 0600);
  EXPECT_EQ(Crl(), dir_ / "crl.pem");
}

// It is read, which fails: revoked nodes are not believed.
TEST_F(RevocationListTest, OneThatCannotBeReadIsThere) {
  for (const char* target : {"crl.pem", "missing", "user.crt/crl.pem"}) {
    ASSERT_EQ(symlink(target, (dir_ / "crl.pem").c_str()), 0);
    EXPECT_EQ(Crl(), dir_ / "crl.pem");
    ASSERT_EQ(unlink((dir_ / "crl.pem").c_str()), 0);
  }
}

}  // namespace
}  // namespace dtrain::transport
