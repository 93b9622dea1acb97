// SPDX-License-Identifier: Apache-2.0
#include "common/manifest/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/manifest/sha256.h"

namespace dtrain::manifest {
namespace {

using Kind = File::Kind;

File Data(std::string path, std::string content = "x") {
  return {Kind::kData, std::move(path), content.size(), HashOf(content), ""};
}

std::string Line(absl::string_view path, absl::string_view size = "1",
                 absl::string_view kind = "f") {
  std::string line =
      absl::StrCat(kind, " ", size, " ", absl::BytesToHexString(HashOf("x")), " ", path);
  line.push_back('\0');
  return line;
}

// RFC 4231, test cases 1, 2 and 6: a key that is shorter than a block, and one that is longer.
TEST(ManifestTest, HmacIsThatOfTheStandard) {
  const auto hmac = [](absl::string_view key, absl::string_view bytes) {
    return absl::BytesToHexString(HmacSha256(key, bytes));
  };
  EXPECT_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(
      hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(ManifestTest, HashIsThatOfTheStandard) {
  EXPECT_EQ(absl::BytesToHexString(HashOf("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(ManifestTest, TheOrderOfTheFilesDoesNotMatter) {
  std::vector<File> one = {Data("b"), Data("a/c"), {Kind::kLink, "l", 0, "", "a/c"}};
  std::vector<File> other = {one[2], one[0], one[1]};
  const auto text = Format(one);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, *Format(other));
  const auto read = Parse(*text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, one);
}

TEST(ManifestTest, ExecutableAndContentChangeTheText) {
  std::vector<File> plain = {Data("run")};
  std::vector<File> program = {{Kind::kProgram, "run", 1, HashOf("x"), ""}};
  std::vector<File> edited = {Data("run", "y")};
  EXPECT_NE(*Format(plain), *Format(program));
  EXPECT_NE(*Format(plain), *Format(edited));
}

TEST(ManifestTest, PathsStayWithinTheTree) {
  for (const char* path : {"", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", "a/"}) {
    EXPECT_FALSE(CheckPath(path).ok()) << path;
    EXPECT_FALSE(Parse(Line(path)).ok()) << path;
  }
  EXPECT_TRUE(CheckPath("a/..b/c").ok());
  std::string deep = "x";
  for (int i = 0; i < 40; ++i) deep += "/x";
  EXPECT_FALSE(CheckPath(deep).ok());
  EXPECT_FALSE(CheckPath(std::string(256, 'a')).ok());
}

TEST(ManifestTest, LinksStayWithinTheTree) {
  EXPECT_TRUE(CheckLink("a/b", "../c").ok());
  EXPECT_TRUE(CheckLink("a", "b/../c").ok());
  EXPECT_FALSE(CheckLink("a/b", "../../c").ok());
  EXPECT_FALSE(CheckLink("a", "..").ok());
  EXPECT_FALSE(CheckLink("a", "b/../../c/d").ok());
  EXPECT_FALSE(CheckLink("a", "/etc").ok());
  EXPECT_FALSE(CheckLink("a", "").ok());
}

File Link(std::string path, std::string target) {
  return {Kind::kLink, std::move(path), 0, "", std::move(target)};
}

// Format and Parse follow them as the kernel would.
TEST(ManifestTest, LinksThroughLinksStayWithinTheTree) {
  const std::vector<std::vector<File>> inward = {
      {Link("a", ".")},
      {Link("a", "b/../c"), Data("b/x")},
      {Link("a", "b/../x"), Link("b", "c/d"), Data("c/d/e"), Data("c/x")},
      {Link("a/b/up", "../.."), Data("x"), Link("y", "a/b/up/x")},
      {Link("a", "gone/../x")},
      {Link("a", "b"), Link("b", "a/../x")},  // a loop leads nowhere
  };
  for (std::vector<File> files : inward) {
    const std::string name = files[0].path + " -> " + files[0].target;
    const auto text = Format(files);
    ASSERT_TRUE(text.ok()) << name << ": " << text.status();
    EXPECT_TRUE(Parse(*text).ok()) << name;
  }
  const std::vector<std::vector<File>> outward = {
      {Link("a", "here/.."), Link("here", ".")},
      {Link("a", "here/here/../../etc"), Link("here", ".")},
      {Link("a", "b/../x"), Link("b", "c/d"), Link("c/d", "..")},
      {Link("d/e/a", "up/../x"), Link("d/e/up", "../..")},
      {Link("a", "b/.."), Link("b", "c"), Link("c", "d"), Link("d", "./.")},
  };
  for (std::vector<File> files : outward) {
    const std::string name = files[0].path + " -> " + files[0].target;
    const auto text = Format(files);
    EXPECT_FALSE(text.ok()) << name;
    EXPECT_EQ(text.status().message(),
              absl::StrCat(files[0].path, " is a symbolic link out of the tree (to ",
                           files[0].target, ")"));
    std::string sent;
    for (const File& file : files) {
      absl::StrAppend(&sent, "l ", file.path, std::string(1, '\0'), file.target,
                      std::string(1, '\0'));
    }
    EXPECT_FALSE(Parse(sent).ok()) << name;
  }
}

// 3000 links through 40 long ones each.
TEST(ManifestTest, LinksThatTakeLongAreRefused) {
  std::vector<File> files;
  std::string way;
  for (int i = 0; i < 600; ++i) way += "y/../";
  for (int i = 100; i < 140; ++i) {
    files.push_back(Link(absl::StrCat("a", i), way + (i == 100 ? "y" : absl::StrCat("a", i - 1))));
  }
  for (int i = 0; i < 3000; ++i) files.push_back(Link(absl::StrCat("b", i), "a139"));
  const auto text = Format(files);
  ASSERT_FALSE(text.ok());
  EXPECT_THAT(std::string(text.status().message()), testing::HasSubstr("symbolic links"));
}

TEST(ManifestTest, NoFileTwiceAndNoneBelowAnother) {
  EXPECT_FALSE(Parse(Line("a") + Line("a")).ok());
  EXPECT_FALSE(Parse(Line("b") + Line("a")).ok());
  // "a-b" stands between them in the order.
  EXPECT_FALSE(Parse(Line("a") + Line("a-b") + Line("a/b")).ok());
  std::string through = "l a";
  through.push_back('\0');
  through += "b";
  through.push_back('\0');
  EXPECT_TRUE(Parse(through).ok());
  EXPECT_FALSE(Parse(through + Line("a/x")).ok());
}

TEST(ManifestTest, OnlyOneTextForATree) {
  EXPECT_TRUE(Parse(Line("a")).ok());
  for (const char* size : {"01", "+1", " 1", "-1", "", "1e3", "99999999999999999999"}) {
    EXPECT_FALSE(Parse(Line("a", size)).ok()) << size;
  }
  using std::string_literals::operator""s;
  for (const std::string& torn : {"f a\0"s, "f 1\0"s, "f 1 a\0"s, "f \0"s, "f "s, "l a\0"s}) {
    EXPECT_FALSE(Parse(torn).ok()) << torn;
  }
  EXPECT_FALSE(Parse(Line("a", "1", "g")).ok());
  EXPECT_FALSE(Parse(Line("a") + "f 1").ok());
  std::string upper = Line("a");
  for (char& c : upper) {
    if (c == 'b' || c == 'd') c = static_cast<char>(c - 32);
  }
  EXPECT_FALSE(Parse(upper).ok());
}

TEST(ManifestTest, NotMoreThanAMillionFiles) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += Line(absl::StrCat(1000000 + i));
  const auto read = Parse(text);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().message(), "a tree may have 40000 files");
  EXPECT_FALSE(Parse(std::string(kMostBytes + 1, 'f')).ok());
}

}  // namespace
}  // namespace dtrain::manifest
