// SPDX-License-Identifier: Apache-2.0
#include "common/tls/revocation.h"

#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <memory>

#include "common/tls/openssl.h"

namespace dtrain::tls {
namespace {

struct List {
  X509_STORE_CTX_check_crl_fn check;  // OpenSSL's own
  const X509_CRL* crl;                // of the store
  // Whose key has made its signature, once that was verified. Handshakes of other threads may look.
  std::atomic<X509*> signer = nullptr;
  ~List() { X509_free(signer.load()); }
};

void FreeList(void*, void* list, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<List*>(list);
}

int ListIndex() {
  static const int index = X509_STORE_get_ex_new_index(0, nullptr, nullptr, nullptr, FreeList);
  return index;
}

bool IsCurrent(const X509_CRL* crl) {
  const ASN1_TIME* next = X509_CRL_get0_nextUpdate(crl);
  return X509_cmp_current_time(X509_CRL_get0_lastUpdate(crl)) < 0 &&
         (next == nullptr || X509_cmp_current_time(next) > 0);
}

int CheckList(X509_STORE_CTX* context, X509_CRL* crl) {
  auto* list =
      static_cast<List*>(X509_STORE_get_ex_data(X509_STORE_CTX_get0_store(context), ListIndex()));
  X509* signer = X509_STORE_CTX_get0_current_issuer(context);
  const bool ours = crl == list->crl && signer != nullptr;
  if (ours && signer == list->signer.load() && IsCurrent(crl)) return 1;
  const int good = list->check(context, crl);
  if (!ours || good != 1 || X509_STORE_CTX_get_error(context) != X509_V_OK) return good;
  X509* none = nullptr;
  X509_up_ref(signer);
  if (!list->signer.compare_exchange_strong(none, signer)) X509_free(signer);
  return good;
}

}  // namespace

void VerifyListOnce(X509_STORE* store, X509_CRL* crl) {
  if (X509_CRL_get_ext_by_NID(crl, NID_issuing_distribution_point, -1) >= 0 ||
      X509_CRL_get_ext_by_NID(crl, NID_delta_crl, -1) >= 0) {
    return;
  }
  const UniqueStoreContext usual(X509_STORE_CTX_new());
  if (usual == nullptr || X509_STORE_CTX_init(usual.get(), store, nullptr, nullptr) != 1) return;
  auto list = std::make_unique<List>();
  list->check = X509_STORE_CTX_get_check_crl(usual.get());
  list->crl = crl;
  if (X509_STORE_set_ex_data(store, ListIndex(), list.get()) != 1) return;
  list.release();
  X509_STORE_set_check_crl(store, CheckList);
}

}  // namespace dtrain::tls
