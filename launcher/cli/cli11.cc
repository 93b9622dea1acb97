// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/cli11.h"

#include <CLI/CLI.hpp>
#include <exception>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/text.h"

namespace dtrain::cli {
namespace {

// Only the groups: usage and description are written by the caller.
class GroupsOnly : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode mode) const override {
    return make_groups(app, mode);
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string& text = option->get_option_text();
    return text.empty() || absl::StartsWith(text, "[=") ? text : absl::StrCat(" ", text);
  }
};

class Definition {
 public:
  explicit Definition(const std::vector<Flag>& flags) : app_("", "dtrain launch") {
    app_.set_help_flag();
    for (const Flag& flag : flags) {
      std::string names(flag.names);
      const std::string help(flag.help);  // const: else add_flag takes it for a variable to set
      CLI::Option* option = flag.value.empty()
                                ? app_.add_flag(names, help)
                                : app_.add_option(
                                      names, [](const CLI::results_t&) { return true; }, help);
      if (!flag.value.empty()) {
        // Without this a value "[a,b]" would be taken for a list of two.
        option->expected(1)->allow_extra_args(false);
      }
      option->multi_option_policy(flag.repeats ? CLI::MultiOptionPolicy::TakeAll
                                               : CLI::MultiOptionPolicy::TakeLast);
      option->group(std::string(flag.group));
      option->option_text(flag.may_take.empty() ? std::string(flag.value)
                                                : absl::StrCat("[=", flag.may_take, "]"));
      options_.push_back(option);
    }
  }

  CLI::App& app() { return app_; }
  const std::vector<CLI::Option*>& options() const { return options_; }

 private:
  CLI::App app_;
  std::vector<CLI::Option*> options_;
};

}  // namespace

absl::StatusOr<std::vector<Given>> ParseFlags(const std::vector<Flag>& flags,
                                              const std::vector<std::string>& words) {
  try {
    Definition definition(flags);
    definition.app().parse(std::vector<std::string>(words.rbegin(), words.rend()));
    std::vector<Given> given;
    for (size_t i = 0; i < flags.size(); ++i) {
      const std::vector<std::string>& results = definition.options()[i]->results();
      size_t first = flags[i].repeats || results.empty() ? 0 : results.size() - 1;
      for (size_t k = first; k < results.size(); ++k) {
        given.push_back({static_cast<int>(i), results[k]});
      }
    }
    return given;
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(Escape(error.what()));
  }
}

std::string FormatFlags(const std::vector<Flag>& flags) {
  try {
    Definition definition(flags);
    auto formatter = std::make_shared<GroupsOnly>();
    formatter->column_width(36);
    definition.app().formatter(formatter);
    return absl::StrReplaceAll(definition.app().help(), {{"\n\n\n", "\n\n"}});
  } catch (const std::exception& error) {
    return Escape(error.what());
  }
}

}  // namespace dtrain::cli
