// Turns "cuda" into another device where PyTorch parses device strings.
//
// Every device string that reaches PyTorch from Python or TorchScript is parsed by one constructor in libc10,
// c10::Device(const std::string&). The libraries that call it do so through a slot of their own, filled by the dynamic
// linker with the constructor's address. We put the address of our function there: it changes the text and goes on to the
// constructor. Nothing else changes, and nothing costs anything.
//
// No PyTorch headers: only the name of that one symbol. ELF systems (Linux) only.
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace {

using Constructor = void (*)(void* device, const std::string& text);

#if _GLIBCXX_USE_CXX11_ABI
constexpr const char* kConstructor = "_ZN3c106DeviceC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
#else
constexpr const char* kConstructor = "_ZN3c106DeviceC1ERKSs";
#endif
constexpr const char* kLibraries[] = {"libtorch_python.so", "libtorch_cpu.so"};

Constructor original = nullptr;
std::string target;  // "npu"

bool is_cuda(const std::string& text) {
  return text.compare(0, 4, "cuda") == 0 && (text.size() == 4 || text[4] == ':');
}

void parse(void* device, const std::string& text) {
  if (!is_cuda(text)) return original(device, text);
  // The CPU is one device: "cuda:1" becomes "cpu".
  original(device, target == "cpu" ? target : target + text.substr(4));
}

struct Replacement {
  Constructor to;
  int slots = 0;
  bool refused = false;
};

struct Dynamic {  // what the dynamic section of a library says about its relocations
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela)* tables[2] = {nullptr, nullptr};
  size_t lengths[2] = {0, 0};

  explicit Dynamic(const dl_phdr_info* info) {
    const ElfW(Dyn)* entry = nullptr;
    for (int i = 0; i < info->dlpi_phnum; i++)
      if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
        entry = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; entry && entry->d_tag != DT_NULL; entry++) {
      switch (entry->d_tag) {
        case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr); break;
        case DT_STRTAB: strings = reinterpret_cast<const char*>(entry->d_un.d_ptr); break;
        case DT_JMPREL: tables[0] = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr); break;
        case DT_PLTRELSZ: lengths[0] = entry->d_un.d_val / sizeof(ElfW(Rela)); break;
        case DT_RELA: tables[1] = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr); break;
        case DT_RELASZ: lengths[1] = entry->d_un.d_val / sizeof(ElfW(Rela)); break;
      }
    }
  }
};

bool in_read_only_part(const dl_phdr_info* info, uintptr_t address) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& part = info->dlpi_phdr[i];
    const uintptr_t start = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_GNU_RELRO && address >= start && address < start + part.p_memsz) return true;
  }
  return false;
}

bool write_slot(const dl_phdr_info* info, void** slot, void* value) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto* start = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot) & ~(page - 1));
  const bool read_only = in_read_only_part(info, reinterpret_cast<uintptr_t>(slot));
  if (read_only && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;  // a hardened system
  *slot = value;
  if (read_only) mprotect(start, page, PROT_READ);
  return true;
}

int visit(dl_phdr_info* info, size_t, void* data) {
  auto* replacement = static_cast<Replacement*>(data);
  bool wanted = false;
  for (const char* library : kLibraries) wanted |= info->dlpi_name && std::strstr(info->dlpi_name, library);
  if (!wanted) return 0;
  const Dynamic dynamic(info);
  if (!dynamic.symbols || !dynamic.strings) return 0;
  for (int t = 0; t < 2; t++) {
    for (size_t i = 0; dynamic.tables[t] && i < dynamic.lengths[t]; i++) {
      const auto& relocation = dynamic.tables[t][i];
      const auto symbol = ELF64_R_SYM(relocation.r_info);
      if (!symbol || std::strcmp(dynamic.strings + dynamic.symbols[symbol].st_name, kConstructor) != 0) continue;
      auto** slot = reinterpret_cast<void**>(info->dlpi_addr + relocation.r_offset);
      if (write_slot(info, slot, reinterpret_cast<void*>(replacement->to))) replacement->slots++;
      else replacement->refused = true;
    }
  }
  return 0;
}

// The number of slots that now hold `to`, or -1 if the system refused.
int replace(Constructor to) {
  Replacement replacement{to};
  dl_iterate_phdr(&visit, &replacement);
  return replacement.refused ? -1 : replacement.slots;
}

}  // namespace

// From now on "cuda" means `device_type`. The number of places that parse device strings, or -1 if it cannot be done.
extern "C" int ditorch_redirect_strings(const char* device_type) {
  if (!original) {
    void* library = dlopen("libc10.so", RTLD_NOLOAD | RTLD_NOW);
    original = reinterpret_cast<Constructor>(library ? dlsym(library, kConstructor) : dlsym(RTLD_DEFAULT, kConstructor));
    if (!original) return -1;
  }
  target = device_type;
  return replace(&parse);
}

// "cuda" means CUDA again.
extern "C" int ditorch_restore_strings() { return original ? replace(original) : 0; }
