// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

// The environment variables that steer the fake.
namespace fake_nccl {

inline int Number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : atoi(text);
}

inline double Fraction(const char* name, double otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : atof(text);
}

// Whether the variable's value is this rank, or the rank and ":something".
inline bool Asked(const char* name, int rank) { return Number(name, -1) == rank; }

// The number behind the rank in "1:300", of that rank; 0 for the others.
inline int AskedNumber(const char* name, int rank) {
  const char* text = getenv(name);
  if (text == nullptr || atoi(text) != rank) return 0;
  const std::string whole = text;
  const size_t colon = whole.find(':');
  return colon == std::string::npos ? 0 : atoi(whole.c_str() + colon + 1);
}

}  // namespace fake_nccl
