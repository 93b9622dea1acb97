// SPDX-License-Identifier: Apache-2.0
#include "launcher/reference/man.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace dtrain::reference {
namespace {

using View = absl::string_view;

// Text that roff shows as it is, and that can be copied from the page: without its hyphens,
// quotation marks and ligatures.
std::string Roff(View text) {
  return absl::StrReplaceAll(text, {{"\\", "\\e"},
                                    {"-", "\\-"},
                                    {"'", "\\(aq"},
                                    {"\"", "\\(dq"},
                                    {"^", "\\(ha"},
                                    {"`", "\\(ga"},
                                    {"~", "\\(ti"}});
}

// One line of text. A dot at its beginning would be a request.
std::string Line(View text) {
  return absl::StrCat(absl::StartsWith(text, ".") ? "\\&" : "", Roff(text), "\n");
}

std::string Section(View title) {
  return absl::StrCat(".SH ", Roff(absl::AsciiStrToUpper(title)), "\n");
}

// Lines of text as a page has them: paragraphs, and lines that begin with a blank as they are.
std::string Body(View text) {
  std::string out;
  bool as_is = false;
  bool open = false;  // something stands above that a new paragraph must be kept apart from
  for (View line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    if (line.empty()) continue;
    const bool shaped = line[0] == ' ';
    if (shaped != as_is) absl::StrAppend(&out, shaped ? (open ? ".PP\n.EX\n" : ".EX\n") : ".EE\n");
    const bool after_gap = line.data() > text.data() + 1 && *(line.data() - 2) == '\n';
    if (!shaped && open && (after_gap || as_is)) absl::StrAppend(&out, ".PP\n");
    as_is = shaped;
    open = true;
    absl::StrAppend(&out, Line(line));
  }
  return absl::StrCat(out, as_is ? ".EE\n" : "");
}

std::string List(const std::vector<cli::Page::Entry>& list) {
  std::string out;
  for (const cli::Page::Entry& entry : list) {
    absl::StrAppend(&out, ".TP\n.B ", Roff(entry.word), "\n", Line(entry.summary));
  }
  return out;
}

std::string Flags(const std::vector<cli::Flag>& flags) {
  std::string out;
  View group;
  for (const cli::Flag& flag : flags) {
    if (flag.group != group && flag.group != "Flags") {
      absl::StrAppend(&out, ".SS ", Roff(flag.group), "\n");
    }
    group = flag.group;
    std::vector<std::string> names;
    for (View name : absl::StrSplit(flag.names, ',')) {
      names.push_back(absl::StrCat("\\fB", Roff(name), "\\fR"));
    }
    absl::StrAppend(&out, ".TP\n", absl::StrJoin(names, ", "));
    if (!flag.value.empty()) absl::StrAppend(&out, " \\fI", Roff(flag.value), "\\fR");
    if (!flag.may_take.empty()) absl::StrAppend(&out, "[=\\fI", Roff(flag.may_take), "\\fR]");
    absl::StrAppend(&out, "\n");
    for (View line : absl::StrSplit(flag.help, '\n')) absl::StrAppend(&out, Line(line));
  }
  return out;
}

std::string SeeAlso(const std::vector<Command>& all, const Command& command) {
  std::vector<std::string> pages;
  for (const Command& other : all) {
    if (other.name == command.name) continue;
    // Of the other commands, those that are near: its own, those beside it and the one it is of.
    const bool below = command.name.empty() ? !absl::StrContains(other.name, ' ')
                                            : absl::StartsWith(other.name, command.name + " ");
    const bool above = other.name.empty() || absl::StartsWith(command.name, other.name + " ");
    const bool launches = absl::StartsWith(command.name, "bench") && other.name == "launch";
    if (below || above || launches) {
      pages.push_back(absl::StrCat(".BR ", Roff(ManPageName(other)), " (1)"));
    }
  }
  pages.push_back(".BR dtrain\\-agent (8)");
  return absl::StrCat(Section("See also"), absl::StrJoin(pages, ",\n"), "\n");
}

}  // namespace

// .nh and .ad l: no word is cut and no gap widened, so that flags and paths can be copied.
std::string FormatManPage(const std::vector<Command>& all, const Command& command,
                          const Release& release) {
  const cli::Page& page = command.page;
  const std::string name = Roff(ManPageName(command));
  std::string out = absl::StrCat(
      ".\\\" Made by dtrain man from the definition of its command line.\n.TH ",
      absl::AsciiStrToUpper(name), " 1 \"", release.date, "\" \"dtrain ", Roff(release.version),
      "\" dtrain\n.nh\n.ad l\n", Section("Name"), name, " \\- ", Roff(command.summary), "\n",
      Section("Synopsis"), ".B ", Roff(page.usage), "\n", Section("Description"), Body(page.text));
  if (!page.more.empty()) absl::StrAppend(&out, ".PP\n", Body(page.more));
  if (!page.list.empty()) absl::StrAppend(&out, Section(page.list_title), List(page.list));
  if (!command.page.flags.empty() || command.name.empty()) {
    absl::StrAppend(&out, Section("Options"),
                    Flags(command.name.empty() ? command.accepts : page.flags));
  }
  if (!page.examples.empty()) absl::StrAppend(&out, Section("Examples"), Body(page.examples));
  if (!page.notes.empty()) absl::StrAppend(&out, Section("Notes"), Body(page.notes));
  return absl::StrCat(out, SeeAlso(all, command));
}

}  // namespace dtrain::reference
