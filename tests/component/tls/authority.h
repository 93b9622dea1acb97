// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/tls/context.h"
#include "tests/support/paths.h"

namespace dtrain::tls {

// A directory of the test's own.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char name[] = "/tmp/dtrain-tls-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A cluster's authority, made by the script that users have.
class Authority {
 public:
  explicit Authority(const std::string& parent, const std::string& name = "lab")
      : dir_(absl::StrCat(parent, "/", name)) {
    Pki("init", absl::StrCat("--name ", name));
  }

  Files Node(const std::string& name, const std::string& flags = "") {
    Pki("node", absl::StrCat(name, " ", flags));
    return FilesIn(absl::StrCat("nodes/", name), "node");
  }
  Files User(const std::string& name, const std::string& flags = "") {
    Pki("user", absl::StrCat(name, " ", flags));
    return FilesIn(absl::StrCat("users/", name), "user");
  }
  void Pki(const std::string& command, const std::string& arguments) {
    setenv("DTRAIN_PKI", SourcePath("deploy/pki/dtrain-pki").c_str(), 1);  // it may have spaces
    Must(absl::StrCat("\"$DTRAIN_PKI\" ", command, " ", dir_, " ", arguments));
  }

  // A certificate of this authority with what no user can ask of the script: `from` and `until` as
  // 20260131120000Z, `san` as in openssl's configuration.
  Files Odd(const std::string& name, const std::string& from, const std::string& until,
            const std::string& san) {
    const std::string folder = absl::StrCat(dir_, "/", name);
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/ext") << "basicConstraints=critical,CA:FALSE\n"
                                   << "extendedKeyUsage=serverAuth,clientAuth\n"
                                   << (san.empty() ? "" : "subjectAltName=" + san + "\n");
    Must(absl::StrCat("cd ", dir_, " && openssl req -new -newkey ec -pkeyopt ",
                      "ec_paramgen_curve:P-256 -nodes -keyout ", name, "/node.key -out ", name,
                      "/csr -subj /CN=", name, " && openssl ca -batch -notext -config ca.cnf -in ",
                      name, "/csr -out ", name, "/node.crt -startdate ", from, " -enddate ", until,
                      " -extfile ", name, "/ext -subj /O=lab/OU=node/CN=", name));
    return FilesIn(name, "node");
  }

  // With a list of revoked certificates that is good for so long.
  void ListFor(int seconds) {
    Must(absl::StrCat("cd ", dir_, " && openssl ca -config ca.cnf -gencrl -crlsec ", seconds,
                      " -out crl.pem"));
  }

  std::string ca() const { return dir_ + "/ca.crt"; }
  std::string crl() const { return dir_ + "/crl.pem"; }
  const std::string& dir() const { return dir_; }

  void Must(const std::string& command) {
    const std::string log = absl::StrCat(dir_, ".log");
    const std::string quiet = absl::StrCat("{ ", command, "; } >", log, " 2>&1 </dev/null");
    ASSERT_EQ(std::system(quiet.c_str()), 0) << command << "\n" << Contents(log);
  }

 private:
  Files FilesIn(const std::string& folder, const std::string& stem) const {
    const std::string prefix = absl::StrCat(dir_, "/", folder, "/", stem);
    return {ca(), prefix + ".crt", prefix + ".key", ""};
  }

  std::string dir_;
};

inline constexpr char kLongAgo[] = "20200101000000Z";
inline constexpr char kYesterday[] = "20210101000000Z";
inline constexpr char kSomeDay[] = "20900101000000Z";
inline constexpr char kLater[] = "20910101000000Z";

}  // namespace dtrain::tls
