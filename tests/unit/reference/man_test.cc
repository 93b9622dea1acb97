// SPDX-License-Identifier: Apache-2.0
#include "launcher/reference/man.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "launcher/subcommands/subcommands.h"

namespace dtrain::reference {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string Man(const Command& command) {
  return FormatManPage(subcommands::Reference(), command, {"1.2.3", "2026-11-30"});
}

TEST(ManPage, NamesEveryFlagByEachOfItsNamesAndItsHelp) {
  for (const Command& command : subcommands::Reference()) {
    const std::string page = absl::StrReplaceAll(
        Man(command), {{"\\-", "-"}, {"\\(dq", "\""}, {"\\(aq", "'"}, {"\\(ti", "~"}});
    for (const cli::Flag& flag : command.page.flags) {
      for (absl::string_view name : absl::StrSplit(flag.names, ',')) {
        EXPECT_THAT(page, HasSubstr(absl::StrCat("\\fB", name, "\\fR"))) << command.name;
      }
      EXPECT_THAT(page, HasSubstr(absl::StrCat("\n", flag.help, "\n"))) << command.name;
    }
  }
}

TEST(ManPage, EveryCommandIsInTheGeneralHelpAndHasOnePage) {
  std::set<std::string> pages;
  for (const Command& command : subcommands::Reference()) {
    EXPECT_TRUE(pages.insert(ManPageName(command)).second) << command.name;
    EXPECT_FALSE(command.summary.empty()) << command.name;
    EXPECT_THAT(command.page.usage, StartsWith(command.page.command));
    EXPECT_THAT(cli::FormatHelp(command.page), HasSubstr("Usage: dtrain"));
  }
  const std::string help = cli::FormatHelp(subcommands::Reference()[0].page);
  for (const subcommands::Subcommand& entry : subcommands::All()) {
    EXPECT_EQ(pages.count(absl::StrCat("dtrain-", entry.name)), 1u) << entry.name;
    EXPECT_THAT(help, HasSubstr(absl::StrCat("\n  ", entry.name, " ")));
    EXPECT_THAT(help, HasSubstr(absl::StrCat(entry.summary, "\n")));
  }
}

TEST(ManPage, TextThatRoffWouldTakeForItsOwn) {
  Command command;
  command.name = "odd";
  command.summary = "odd";
  command.page.command = "dtrain odd";
  command.page.usage = "dtrain odd";
  command.page.text = ".hidden and 'this\n\n  as  it\n  \\is\n\nand on\n.PP\n";
  const std::string page = Man(command);
  EXPECT_THAT(page, HasSubstr(".TH DTRAIN\\-ODD 1 \"2026-11-30\" \"dtrain 1.2.3\" dtrain\n"));
  EXPECT_THAT(page, HasSubstr(".SH DESCRIPTION\n"
                              "\\&.hidden and \\(aqthis\n"
                              ".PP\n.EX\n  as  it\n  \\eis\n.EE\n"
                              ".PP\nand on\n\\&.PP\n"));
}

}  // namespace
}  // namespace dtrain::reference
