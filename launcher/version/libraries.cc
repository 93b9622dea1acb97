// SPDX-License-Identifier: Apache-2.0
#include <absl/base/config.h>
#include <ares.h>
#include <fmt/core.h>
#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>
#include <openssl/crypto.h>
#include <spdlog/version.h>
#include <toml++/impl/version.h>
#include <yaml.h>
#include <zlib.h>

#include <CLI/CLI.hpp>
#include <boost/version.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "launcher/version/version.h"

namespace dtrain::version {
namespace {

std::string Dotted(int major, int minor, int patch) {
  return absl::StrCat(major, ".", minor, ".", patch);
}

}  // namespace

std::vector<Library> Libraries() {
  return {
      {"absl", absl::StrCat(ABSL_LTS_RELEASE_VERSION, ".", ABSL_LTS_RELEASE_PATCH_LEVEL)},
      {"Boost", absl::StrReplaceAll(BOOST_LIB_VERSION, {{"_", "."}})},
      {"c-ares", ARES_VERSION_STR},
      {"CLI11", CLI11_VERSION},
      {"fmt", Dotted(FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"gRPC", grpc::Version()},
      {"libstdc++", __VERSION__},
      {"libyaml", yaml_get_version_string()},
      {"nlohmann/json", Dotted(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                               NLOHMANN_JSON_VERSION_PATCH)},
      {"OpenSSL", OpenSSL_version(OPENSSL_VERSION_STRING)},
      {"Protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)},
      {"spdlog", Dotted(SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH)},
      {"toml++", Dotted(TOML_LIB_MAJOR, TOML_LIB_MINOR, TOML_LIB_PATCH)},
      {"zlib", ZLIB_VERSION},
  };
}

}  // namespace dtrain::version
