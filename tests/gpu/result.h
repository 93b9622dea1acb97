// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace dtrain::gpu_check {

// What one process of a check found. Printed as one line, "gpu-check {...}", which tools/gpu-check
// reads. A process that prints none has missed the check.
class Result {
 public:
  explicit Result(std::string part) : part_(std::move(part)) {}

  // The check failed. Only the first ten reasons are kept.
  void Miss(const std::string& why);
  // A part of the check could not run: the whole of it then never counts as met.
  void CouldNot(const std::string& why);
  void Number(const std::string& name, double value);
  void Text(const std::string& name, const std::string& value);

  bool missed() const { return !missed_.empty(); }
  // Prints the line, and returns the exit code: 0, because the line says it all, and a launcher
  // would end the other ranks of one that fails.
  int Print() const;
  // For what makes going on pointless: prints and ends the process.
  [[noreturn]] void Give() const;

 private:
  std::string part_;
  std::vector<std::string> missed_;
  std::vector<std::string> could_not_;
  std::map<std::string, std::string> fields_;  // as JSON; the last value of a name
};

// This process's rank and the number of ranks, from what the launcher set; 0 and 1 without one.
int RankInEnvironment();
int RanksInEnvironment();

}  // namespace dtrain::gpu_check
