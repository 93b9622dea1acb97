// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef DTRAIN_HAS_PMIX

#include <pmix_common.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::pmix {

// A list of what the library calls info, with what its pointers point to. Filled in by hand: the
// library's own functions for it differ between versions.
class InfoList {
 public:
  void Add(const char* key, const std::string& value) {
    texts_.push_back(value);
    Next(key, PMIX_STRING).data.string = texts_.back().data();
  }
  void Add(const char* key, uint32_t value) { Next(key, PMIX_UINT32).data.uint32 = value; }
  void Add16(const char* key, uint16_t value) { Next(key, PMIX_UINT16).data.uint16 = value; }
  void AddRank(const char* key, uint32_t rank) { Next(key, PMIX_PROC_RANK).data.rank = rank; }
  void AddYes(const char* key) { Next(key, PMIX_BOOL).data.flag = true; }
  // An empty list in this one, for the caller to fill before it uses this one.
  InfoList& AddList(const char* key) {
    Next(key, PMIX_DATA_ARRAY);
    return *lists_.emplace_back(infos_.size() - 1, std::make_unique<InfoList>()).second;
  }

  size_t size() const { return infos_.size(); }
  pmix_info_t* data() {
    arrays_.clear();
    for (auto& [index, list] : lists_) {
      pmix_data_array_t& array = arrays_.emplace_back();
      array.type = PMIX_INFO;
      array.size = list->size();
      array.array = list->data();
      infos_[index].value.data.darray = &array;
    }
    return infos_.data();
  }

 private:
  pmix_value_t& Next(const char* key, pmix_data_type_t type) {
    pmix_info_t info;
    std::memset(&info, 0, sizeof(info));
    std::strncpy(info.key, key, sizeof(info.key) - 1);
    info.value.type = type;
    infos_.push_back(info);
    return infos_.back().value;
  }
  std::vector<pmix_info_t> infos_;
  std::deque<std::string> texts_;
  std::deque<pmix_data_array_t> arrays_;
  std::deque<std::pair<size_t, std::unique_ptr<InfoList>>> lists_;
};

}  // namespace dtrain::pmix

#endif
