// SPDX-License-Identifier: Apache-2.0
#include "launcher/faces/face.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace dtrain::faces {
namespace {

using Becomes = FaceFlag::Becomes;

std::string Summary(const FaceFlag& flag) {
  switch (flag.becomes) {
    case Becomes::kFlag:
      return flag.help.empty() ? absl::StrCat("dtrain launch ", flag.to) : std::string(flag.help);
    case Becomes::kVariable:
      return flag.help.empty() ? absl::StrCat("sets ", flag.to) : std::string(flag.help);
    case Becomes::kIgnored:
      return flag.to.empty() ? "accepted; nothing to do" : absl::StrCat("ignored: ", flag.to);
    case Becomes::kRejected:
      return absl::StrCat("not supported: ", flag.to);
    case Becomes::kOwn:
      return std::string(flag.help);
  }
  return "";
}

}  // namespace

const std::vector<const Face*>& Faces() {
  static const auto* faces = new std::vector<const Face*>{
      &kTorchrun, &kMpirun, &kMpiexec, &kDeepspeed, &kAccelerate, &kFabric, &kHorovodrun};
  return *faces;
}

const Face* Find(absl::string_view name) {
  const auto it = std::find_if(Faces().begin(), Faces().end(),
                               [&](const Face* face) { return face->name == name; });
  return it == Faces().end() ? nullptr : *it;
}

bool WantsHelp(const Face& face, const std::vector<std::string>& args) {
  std::vector<FaceFlag> flags = face.flags();
  flags.push_back({.names = "--help,-h", .values = ""});
  const bool has_verb = !face.verb.empty() && !args.empty() && args[0] == face.verb;
  const auto words = SplitFace(flags, face.spelling,
                               std::vector<std::string>(args.begin() + has_verb, args.end()));
  if (!words.ok()) return false;
  return std::any_of(words->mentions.begin(), words->mentions.end(), [](const Mention& mention) {
    return mention.flag != nullptr && NameOf(*mention.flag) == "help";
  });
}

cli::Page PageOf(const Face& face) {
  cli::Page page;
  page.command = absl::StrCat("dtrain ", face.name);
  page.text = std::string(face.text);
  page.usage = absl::StrCat("dtrain ", face.usage);
  page.list_title = "Flags, and what becomes of them";
  for (const FaceFlag& flag : face.flags()) {
    const std::string names = absl::StrReplaceAll(flag.names, {{",", ", "}});
    page.list.push_back(
        {absl::StrCat(names, flag.values.empty() ? "" : " ", flag.values), Summary(flag)});
  }
  page.notes =
      "Flags of dtrain launch whose names the launcher does not use (--hostfile, --dry-run, ...) "
      "work\n"
      "here too. Exit codes are those of dtrain launch.\n";
  page.operand = cli::Page::Operand::kProgram;
  return page;
}

}  // namespace dtrain::faces
