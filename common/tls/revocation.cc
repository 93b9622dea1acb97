// SPDX-License-Identifier: Apache-2.0
#include "common/tls/revocation.h"

#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <utility>

namespace dtrain::tls {
namespace {

struct List {
  explicit List(UniqueCrl of) : crl(std::move(of)) {}
  ~List() { X509_free(signer.load()); }
  const UniqueCrl crl;  // in the store, too
  // Whose key has made its signature, once that was verified. Handshakes of other threads may look.
  std::atomic<X509*> signer = nullptr;
};

struct Lists {
  X509_STORE_CTX_check_crl_fn check = nullptr;  // OpenSSL's own
  std::deque<List> all;                         // they cannot be moved
};

void FreeLists(void*, void* lists, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<Lists*>(lists);
}

int ListsIndex() {
  static const int index = X509_STORE_get_ex_new_index(0, nullptr, nullptr, nullptr, FreeLists);
  return index;
}

bool IsForSome(const X509_CRL* crl) {
  return X509_CRL_get_ext_by_NID(crl, NID_issuing_distribution_point, -1) >= 0 ||
         X509_CRL_get_ext_by_NID(crl, NID_delta_crl, -1) >= 0;
}

bool IsCurrent(const X509_CRL* crl) {
  const ASN1_TIME* next = X509_CRL_get0_nextUpdate(crl);
  return X509_cmp_current_time(X509_CRL_get0_lastUpdate(crl)) < 0 &&
         (next == nullptr || X509_cmp_current_time(next) > 0);
}

int CheckList(X509_STORE_CTX* context, X509_CRL* crl) {
  auto* lists =
      static_cast<Lists*>(X509_STORE_get_ex_data(X509_STORE_CTX_get0_store(context), ListsIndex()));
  const auto list = std::find_if(lists->all.begin(), lists->all.end(),
                                 [crl](const List& each) { return each.crl.get() == crl; });
  X509* signer = X509_STORE_CTX_get0_current_issuer(context);
  const bool ours = list != lists->all.end() && signer != nullptr;
  if (ours && signer == list->signer.load() && IsCurrent(crl)) return 1;
  const int good = lists->check(context, crl);
  if (!ours || good != 1 || X509_STORE_CTX_get_error(context) != X509_V_OK) return good;
  X509* none = nullptr;
  X509_up_ref(signer);
  if (!list->signer.compare_exchange_strong(none, signer)) X509_free(signer);
  return good;
}

}  // namespace

void VerifyListsOnce(X509_STORE* store, std::vector<UniqueCrl> crls) {
  const UniqueStoreContext usual(X509_STORE_CTX_new());
  if (usual == nullptr || X509_STORE_CTX_init(usual.get(), store, nullptr, nullptr) != 1) return;
  auto lists = std::make_unique<Lists>();
  lists->check = X509_STORE_CTX_get_check_crl(usual.get());
  for (UniqueCrl& crl : crls) {
    if (!IsForSome(crl.get())) lists->all.emplace_back(std::move(crl));
  }
  if (X509_STORE_set_ex_data(store, ListsIndex(), lists.get()) != 1) return;
  lists.release();
  X509_STORE_set_check_crl(store, CheckList);
}

}  // namespace dtrain::tls
