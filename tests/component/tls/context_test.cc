// SPDX-License-Identifier: Apache-2.0
// What is refused when certificates are read from the disk, and what is said then.
#include "common/tls/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/component/tls/authority.h"

namespace dtrain::tls {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class ContextTest : public testing::Test {
 protected:
  static std::string WhyNot(Side side, const Files& files) {
    const auto context = Context::Load(side, files);
    return context.ok() ? "it is taken" : std::string(context.status().message());
  }

  TemporaryDirectory directory_;
  Authority lab_{directory_.path()};
};

TEST_F(ContextTest, ANodeServesAndAsks) {
  Files files = lab_.Node("gpu01", "--ip 10.0.0.1 --dns gpu01.lab");
  files.crl = lab_.crl();
  for (const Side side : {Side::kServer, Side::kClient}) {
    const auto context = Context::Load(side, files);
    ASSERT_TRUE(context.ok()) << context.status();
    const Certificate& own = (*context)->own();
    EXPECT_EQ(own.kind, Kind::kNode);
    EXPECT_EQ(own.name, "gpu01");
    EXPECT_EQ(own.common_name, "gpu01");
    EXPECT_THAT(own.dns_names, ElementsAre("gpu01", "gpu01.lab"));
    EXPECT_THAT(own.addresses, ElementsAre("10.0.0.1"));
    EXPECT_THAT(own.uris, ElementsAre("dtrain:node:gpu01"));
    EXPECT_THAT(Contents(lab_.dir() + "/index.txt"), HasSubstr(own.serial));
    EXPECT_GT(own.not_after, absl::Now() + absl::Hours(24 * 360));
    EXPECT_LT(own.not_before, absl::Now());
  }
}

TEST_F(ContextTest, PeopleAskAndDoNotServe) {
  const Files files = lab_.User("alice", "--admin");
  const auto context = Context::Load(Side::kClient, files);
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_EQ((*context)->own().kind, Kind::kAdmin);
  EXPECT_THAT(WhyNot(Side::kServer, files), HasSubstr("agents need a node certificate"));
}

TEST_F(ContextTest, AKeyThatOthersCanRead) {
  const Files files = lab_.Node("gpu01");
  ASSERT_EQ(chmod(files.key.c_str(), 0640), 0);
  const auto context = Context::Load(Side::kServer, files);
  EXPECT_EQ(context.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(WhyNot(Side::kServer, files),
              AllOf(HasSubstr("mode 0640"), HasSubstr("chmod 600 " + files.key)));
}

TEST_F(ContextTest, FilesThatAreNotThere) {
  const Files good = lab_.Node("gpu01");
  for (std::string Files::*member : {&Files::ca, &Files::certificate, &Files::key, &Files::crl}) {
    Files files = good;
    files.*member = directory_.path() + "/nothing";
    EXPECT_EQ(Context::Load(Side::kServer, files).status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(WhyNot(Side::kServer, files), HasSubstr(directory_.path() + "/nothing"));
  }
}

TEST_F(ContextTest, FilesWithSomethingElseInThem) {
  const Files good = lab_.Node("gpu01");
  const std::string junk = directory_.path() + "/junk";
  std::ofstream(junk) << "-----BEGIN CERTIFICATE-----\nhello\n-----END CERTIFICATE-----\n";
  ASSERT_EQ(chmod(junk.c_str(), 0600), 0);
  for (std::string Files::*member : {&Files::ca, &Files::certificate, &Files::key, &Files::crl}) {
    Files files = good;
    files.*member = junk;
    EXPECT_THAT(WhyNot(Side::kServer, files), AllOf(HasSubstr(junk), HasSubstr("holds")));
  }
  std::ofstream(junk, std::ios::trunc)
      << Contents(good.certificate) << "-----BEGIN CERTIFICATE-----\nMIIB\n";
  Files files = good;
  files.certificate = junk;
  EXPECT_THAT(WhyNot(Side::kServer, files), HasSubstr("broken certificate"));
  std::ofstream(junk, std::ios::trunc)
      << Contents(lab_.crl()) << "-----BEGIN X509 CRL-----\nMIIB\n";
  files = good;
  files.crl = junk;
  EXPECT_THAT(WhyNot(Side::kServer, files), HasSubstr("broken list of revoked certificates"));
}

TEST_F(ContextTest, AnEncryptedKeyIsNotAskedFor) {
  Files files = lab_.Node("gpu01");
  const std::string key = directory_.path() + "/encrypted.key";
  const std::string command = "umask 077; openssl ec -aes128 -passout pass:secret -in " +
                              files.key + " -out " + key + " 2>/dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  files.key = key;
  EXPECT_THAT(WhyNot(Side::kServer, files), HasSubstr("without a passphrase"));
}

TEST_F(ContextTest, TheKeyOfAnother) {
  Files files = lab_.Node("gpu01");
  files.key = lab_.Node("gpu02").key;
  EXPECT_THAT(WhyNot(Side::kServer, files), HasSubstr("is not the key of"));
}

// I5: three faults, three texts.
TEST_F(ContextTest, ExpiredNotYetValidAndAnotherAuthority) {
  const std::string san = "URI:dtrain:node:gpu01,DNS:gpu01";
  EXPECT_THAT(WhyNot(Side::kServer, lab_.Odd("old", kLongAgo, kYesterday, san)),
              HasSubstr("(old) expired on 2021-01-01 00:00:00 UTC: renew it"));
  EXPECT_THAT(WhyNot(Side::kServer, lab_.Odd("new", kSomeDay, kLater, san)),
              HasSubstr("(new) is valid only from 2090-01-01 00:00:00 UTC on"));
  Authority other(directory_.path(), "other");
  Files files = other.Node("gpu01");
  files.ca = lab_.ca();
  EXPECT_THAT(WhyNot(Side::kServer, files),
              HasSubstr("(gpu01) was issued by another authority (CN=dtrain authority,O=other)"));
}

TEST_F(ContextTest, ARevokedOne) {
  Files files = lab_.Node("gpu01");
  const std::string copy = directory_.path() + "/copy";
  std::filesystem::copy(lab_.dir() + "/nodes/gpu01", copy);
  lab_.Pki("revoke", "gpu01");
  files = {lab_.ca(), copy + "/node.crt", copy + "/node.key", ""};
  EXPECT_EQ(WhyNot(Side::kServer, files), "it is taken");
  files.crl = lab_.crl();
  EXPECT_THAT(WhyNot(Side::kServer, files), HasSubstr("(gpu01) was revoked (serial number"));
}

TEST_F(ContextTest, AListOfRevokedCertificatesOfAnotherAuthority) {
  Files files = lab_.Node("gpu01");
  Authority other(directory_.path(), "other");
  files.crl = other.crl();
  EXPECT_THAT(WhyNot(Side::kServer, files),
              HasSubstr("crl.pem here has no list from its authority"));
}

TEST_F(ContextTest, AListOfRevokedCertificatesThatSomebodyChanged) {
  Files files = lab_.Node("gpu01");
  const std::string der = directory_.path() + "/der";
  lab_.Must(absl::StrCat("openssl crl -in ", lab_.crl(), " -outform DER -out ", der));
  std::string bytes = Contents(der);
  bytes.back() ^= 1;  // of the signature
  std::ofstream(der) << bytes;
  files.crl = directory_.path() + "/changed.pem";
  lab_.Must(absl::StrCat("openssl crl -inform DER -in ", der, " -out ", files.crl));
  EXPECT_THAT(WhyNot(Side::kServer, files),
              HasSubstr("(gpu01) cannot be checked: crl.pem here is damaged"));
}

TEST_F(ContextTest, ACertificateThatDoesNotSayWhoseItIs) {
  EXPECT_THAT(WhyNot(Side::kServer, lab_.Odd("mute", kLongAgo, kLater, "DNS:mute")),
              HasSubstr("\"mute\" has no name of the form dtrain:node:NAME"));
  EXPECT_THAT(WhyNot(Side::kServer, lab_.Odd("none", kLongAgo, kLater, "")),
              HasSubstr("has no name of the form"));
  EXPECT_THAT(WhyNot(Side::kServer,
                     lab_.Odd("two", kLongAgo, kLater, "URI:dtrain:node:a,URI:dtrain:admin:b")),
              HasSubstr("has more than one name of the form"));
  EXPECT_THAT(WhyNot(Side::kServer, lab_.Odd("odd", kLongAgo, kLater, "URI:dtrain:king:a")),
              HasSubstr("has no name of the form"));
}

TEST_F(ContextTest, TwoAuthoritiesWhileOneTakesOver) {
  Authority other(directory_.path(), "other");
  Files files = other.Node("gpu01");
  const std::string both = directory_.path() + "/both.crt";
  std::ofstream(both) << Contents(lab_.ca()) << Contents(other.ca());
  files.ca = both;
  EXPECT_EQ(WhyNot(Side::kServer, files), "it is taken");
}

// Those of one cluster have the same name.
TEST_F(ContextTest, TwoAuthoritiesHaveAListEach) {
  const std::string folder = directory_.path() + "/next";
  std::filesystem::create_directory(folder);
  Authority next(folder);
  const std::string ca = directory_.path() + "/both.crt";
  const std::string crl = directory_.path() + "/both.pem";
  std::ofstream(ca) << Contents(lab_.ca()) << Contents(next.ca());
  const auto revoked = [&](Authority& authority, const std::string& name) {
    authority.Node(name);
    const std::string copy = absl::StrCat(directory_.path(), "/", name);
    std::filesystem::copy(absl::StrCat(authority.dir(), "/nodes/", name), copy);
    authority.Pki("revoke", name);
    return Files{ca, copy + "/node.crt", copy + "/node.key", crl};
  };
  std::vector<Files> good = {lab_.Node("gpu01"), next.Node("gpu02")};
  for (Files& files : good) {
    files.ca = ca;
    files.crl = crl;
  }
  // In this order: the list of the old authority is the newer one.
  const std::vector<Files> bad = {revoked(next, "gpu04"), revoked(lab_, "gpu03")};
  for (const auto& [first, second] : {std::pair(&lab_, &next), std::pair(&next, &lab_)}) {
    std::ofstream(crl, std::ios::trunc) << Contents(first->crl()) << Contents(second->crl());
    for (const Files& files : good) EXPECT_EQ(WhyNot(Side::kServer, files), "it is taken");
    for (const Files& files : bad) {
      EXPECT_THAT(WhyNot(Side::kServer, files), HasSubstr("was revoked (serial number"));
    }
  }
}

}  // namespace
}  // namespace dtrain::tls
