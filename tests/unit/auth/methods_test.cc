// SPDX-License-Identifier: Apache-2.0
// I3: every method that the services of proto/ and the routes of docs/api.md name is in the table
// of who may call it, and the table names no others. Read from those files, so that a new method
// fails here until somebody has decided.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/auth/authorise.h"
#include "tests/support/paths.h"

namespace dtrain::auth {
namespace {

namespace fs = std::filesystem;
namespace pb = google::protobuf;
const fs::path kRoot = SourcePath("");

std::set<std::string> MethodsOfProto() {
  std::set<std::string> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(kRoot / "proto/dtrain/v1")) {
    if (entry.path().extension() != ".proto") continue;
    const pb::FileDescriptor* file = pb::DescriptorPool::generated_pool()->FindFileByName(
        absl::StrCat("dtrain/v1/", entry.path().filename().string()));
    EXPECT_NE(file, nullptr) << entry.path() << " is not linked in";
    for (int s = 0; file != nullptr && s < file->service_count(); ++s) {
      const pb::ServiceDescriptor* service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        out.insert(absl::StrCat("/", service->full_name(), "/", service->method(m)->name()));
      }
    }
  }
  return out;
}

// Those that an agent has.
std::set<std::string> RoutesOfDocs() {
  std::ostringstream text;
  text << std::ifstream(kRoot / "docs/api.md").rdbuf();
  const std::string page = text.str();
  const size_t begin = page.find("```json\n{\n  \"openapi\"");
  EXPECT_NE(begin, page.npos);
  const size_t end = page.find("```", begin + 3);
  const auto schema = nlohmann::json::parse(page.substr(begin + 8, end - begin - 8));
  std::set<std::string> out;
  for (const auto& [path, methods] : schema.at("paths").items()) {
    for (const auto& [method, what] : methods.items()) {
      if (what.value("x-only", "") == "launcher") continue;
      out.insert(absl::StrCat(absl::AsciiStrToUpper(method), " ", path));
    }
  }
  return out;
}

std::set<std::string> Listed(bool http) {
  std::set<std::string> out;
  for (const Rule& rule : Rules()) {
    if (absl::StartsWith(rule.method, "/") != http) out.emplace(rule.method);
  }
  return out;
}

TEST(Methods, EveryCallOfAServiceIsInTheTable) {
  EXPECT_GE(MethodsOfProto().size(), 2u);
  EXPECT_EQ(Listed(false), MethodsOfProto());
}

TEST(Methods, EveryRouteIsInTheTable) {
  EXPECT_GE(RoutesOfDocs().size(), 8u);
  EXPECT_EQ(Listed(true), RoutesOfDocs());
}

TEST(Methods, EachOnce) { EXPECT_EQ(Rules().size(), Listed(false).size() + Listed(true).size()); }

TEST(Methods, APathLeadsToItsRoute) {
  EXPECT_EQ(RouteOf("GET", "/v1/jobs"), "GET /v1/jobs");
  EXPECT_EQ(RouteOf("HEAD", "/v1/jobs"), "GET /v1/jobs");
  EXPECT_EQ(RouteOf("GET", "/v1/jobs/dtrain-1f"), "GET /v1/jobs/{id}");
  EXPECT_EQ(RouteOf("GET", "/v1/jobs/dtrain-1f/ranks/3/log"), "GET /v1/jobs/{id}/ranks/{rank}/log");
  for (const char* path :
       {"", "/", "v1/jobs", "/v1/jobs/", "/v1//x", "/v1/jobs/a/ranks/3/log/x", "/v1/JOBS",
        "/v2/jobs", "/healthz/", "/v1/jobs/{id}/rank", "/dtrain.v1.Agent/Session"}) {
    EXPECT_EQ(RouteOf("GET", path), "") << path;
  }
  for (const char* method : {"POST", "DELETE", "PUT", "get", "", "GET /v1"}) {
    EXPECT_EQ(RouteOf(method, "/v1/jobs"), "") << method;
  }
}

}  // namespace
}  // namespace dtrain::auth
