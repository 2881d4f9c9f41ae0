/* The zygote of the local sandbox provider, and the first process of every sandbox.
 *
 * Consumes requests of the controller on one SEQPACKET socket; waits for nothing else; ends at the socket's
 * end. `cell_serve` builds, once, a read-only root of its own (a tmpfs with binds of the system's folders) in
 * a private mount namespace, pivots into it and drops the host's root. For each request it makes a tmpfs for
 * the work folder and clones a child into new user, pid, mount, ipc, uts and cgroup namespaces.
 *
 * That child is pid 1 of the sandbox ("init"). It finishes the setup (network namespace, /proc, /tmp), and
 * then consumes commands on a socket of its own: it runs one program at a time as the model's uid, reaps
 * every process, kills what a program left behind, and ends, and with it the whole pid namespace, at the
 * socket's end. So a controller that dies at any moment takes everything with it.
 *
 * The same source is a program (`cell`) and a library that a preloaded Python interpreter calls (zygote.py).
 * In the library, `cell_serve` returns in a child that is to run a Python snippet, and nowhere else.
 *
 * Init is not dumpable, so that the model can neither trace it nor read its memory; signals from inside do
 * not reach pid 1. Everything runs in one thread: only such a process may clone without leaking a stuck child.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef SYS_open_tree
#define SYS_open_tree 428
#endif
#ifndef SYS_move_mount
#define SYS_move_mount 429
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

#define MAX_MESSAGE (220 * 1024)
#define MAX_STRINGS 4096
#define MAX_BINDS 64
#define CHILD_STACK (256 * 1024)
#define WATCH_MS 100
#define MODEL 1000 /* uid and gid of programs inside */
#define IMAGE "/run/headway/image"
#define SPACE "/run/headway/space" /* the zygote's own while it makes a work folder */
#define UPPER SPACE "/upper"

/* Not in every libc's headers. */
struct cell_mount_attr {
  uint64_t attr_set, attr_clr, propagation, userns_fd;
};
#define ATTR_RDONLY 0x1
#define ATTR_NOSUID 0x2
#define ATTR_NODEV 0x4
#define ATTR_NOEXEC 0x8
#define TREE_CLONE 1
#define TREE_RECURSIVE 0x8000
#define MOVE_FROM_EMPTY 4
#define EMPTY_PATH 0x1000

static struct {
  unsigned long long work_bytes, work_files, tmp_bytes, nproc, address_space, file_size, open_files, cpu_s, memory;
  unsigned int init_uid, model_uid; /* outside; 0 for "the caller's own, and no other" */
  int single_uid;                   /* one uid is mapped, init and model share it */
  int num_binds, num_links;
  const char *image; /* folder that every work folder begins with, found below an overlay; 0 for none */
  struct {
    const char *path, *at; /* on the host, and inside where that is another name */
    int tree;
  } binds[MAX_BINDS];
  struct {
    const char *path, *target;
  } links[MAX_BINDS];
} config;

static int control = -1;        /* to the controller; of the zygote, later of init */
static int may_preload = 0;     /* whether a Python interpreter called us */
static int pid_one = 0;         /* set in init only: kill(-1) reaches this sandbox and nobody else */
static char message[MAX_MESSAGE];
static char *strings[MAX_STRINGS];
static char *argument_area = 0; /* what /proc/<pid>/cmdline shows */
static size_t argument_bytes = 0;
static struct sock_fprog filter;

/* ------------------------------------------------------------------------------------------- messages */

static int send_message(int socket, const void *data, size_t size, const int *fds, int num_fds) {
  char space[CMSG_SPACE(4 * sizeof(int))] = {0};
  struct iovec part = {(void *)data, size};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
  if (num_fds) {
    header.msg_control = space;
    header.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
    struct cmsghdr *extra = CMSG_FIRSTHDR(&header);
    extra->cmsg_level = SOL_SOCKET;
    extra->cmsg_type = SCM_RIGHTS;
    extra->cmsg_len = CMSG_LEN(num_fds * sizeof(int));
    memcpy(CMSG_DATA(extra), fds, num_fds * sizeof(int));
  }
  ssize_t sent;
  do sent = sendmsg(socket, &header, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent < 0 ? -1 : 0;
}

/* Receives into `message`; returns its size, 0 at the end, -1 for an error. */
static ssize_t receive_message(int socket, int *fds, int *num_fds) {
  char space[CMSG_SPACE(4 * sizeof(int))];
  struct iovec part = {message, sizeof message - 1};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  ssize_t size;
  do size = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  while (size < 0 && errno == EINTR);
  *num_fds = 0;
  if (size < 0) return -1;
  for (struct cmsghdr *extra = CMSG_FIRSTHDR(&header); extra; extra = CMSG_NXTHDR(&header, extra))
    if (extra->cmsg_level == SOL_SOCKET && extra->cmsg_type == SCM_RIGHTS) {
      *num_fds = (extra->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      memcpy(fds, CMSG_DATA(extra), *num_fds * sizeof(int));
    }
  message[size] = 0;
  return size;
}

/* Tells the controller what failed ("E<step>: <why>") and ends this process. */
static void die(const char *format, ...) {
  char text[512] = "E";
  int why = errno;
  va_list arguments;
  va_start(arguments, format);
  int at = 1 + vsnprintf(text + 1, 300, format, arguments);
  va_end(arguments);
  if (at > 300) at = 300;
  at += snprintf(text + at, sizeof text - at, ": %s", strerror(why));
  send_message(control, text, at, 0, 0);
  _exit(71);
}

static int write_file(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t done = write(fd, text, strlen(text));
  int why = errno;
  close(fd);
  errno = why;
  return done < 0 ? -1 : 0;
}

/* --------------------------------------------------------------------------------------- system calls */

#if defined(__x86_64__)
#define THIS_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCH AUDIT_ARCH_AARCH64
#else
#error "the sandbox's system-call filter knows x86-64 and aarch64 only"
#endif

/* Refused with EPERM: privileged, or kernel surface that a program of a model has no use for. */
static const int refused[] = {
    SYS_bpf, SYS_userfaultfd, SYS_keyctl, SYS_add_key, SYS_request_key, SYS_perf_event_open,
    425 /* io_uring_setup */, 426 /* io_uring_enter */, 427 /* io_uring_register */,
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_open_tree, SYS_move_mount, 430 /* fsopen */,
    431 /* fsconfig */, 432 /* fsmount */, 433 /* fspick */, SYS_mount_setattr, 467 /* open_tree_attr */,
    SYS_unshare, SYS_setns, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, 438 /* pidfd_getfd */,
    440 /* process_madvise */, 448 /* process_mrelease */, SYS_kcmp,
    SYS_kexec_load, 
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_acct,
    SYS_quotactl, 443 /* quotactl_fd */, SYS_syslog, SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime,
    SYS_adjtimex, SYS_sethostname, SYS_setdomainname, SYS_vhangup, SYS_fanotify_init, SYS_fanotify_mark,
    SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_lookup_dcookie, SYS_nfsservctl,
    /* Memory that only a cgroup would count. */
    SYS_memfd_create, 447 /* memfd_secret */,
    SYS_mbind, SYS_migrate_pages, SYS_move_pages, SYS_set_mempolicy,
    444 /* landlock_create_ruleset */, 445, 446, 457 /* statmount */, 458 /* listmount */,
#ifdef __x86_64__
    SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS__sysctl, SYS_uselib, SYS_ustat, SYS_sysfs,
    SYS_create_module, SYS_get_kernel_syms, SYS_query_module,
#endif
};

#define NAMESPACES \
  (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)
#define NUM_REFUSED (sizeof refused / sizeof *refused)

static void build_filter(void) {
  static struct sock_filter code[NUM_REFUSED * 2 + 40];
  int at = 0;
#define ADD(...) code[at++] = (struct sock_filter)__VA_ARGS__
#define LOAD(field) ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field)))
#define RETURN(what) ADD(BPF_STMT(BPF_RET | BPF_K, what))
#define UNLESS(number, skip) ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(number), 0, skip))
  LOAD(arch);
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 1, 0));
  RETURN(SECCOMP_RET_ERRNO | EPERM);
  LOAD(nr);
#ifdef __x86_64__
  ADD(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1)); /* the x32 names of the same calls */
  RETURN(SECCOMP_RET_ERRNO | EPERM);
#endif
  for (size_t i = 0; i < NUM_REFUSED; i++) {
    UNLESS(refused[i], 1);
    RETURN(SECCOMP_RET_ERRNO | EPERM);
  }
  /* Its flags lie in memory, where a filter cannot look; libc goes on with clone. */
  UNLESS(SYS_clone3, 1);
  RETURN(SECCOMP_RET_ERRNO | ENOSYS);
  UNLESS(SYS_clone, 4);
  LOAD(args[0]);
  ADD(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1));
  RETURN(SECCOMP_RET_ERRNO | EPERM);
  RETURN(SECCOMP_RET_ALLOW);
  UNLESS(SYS_ioctl, 5);
  LOAD(args[1]);
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x5412 /* TIOCSTI */, 1, 0));
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x541c /* TIOCLINUX */, 0, 1));
  RETURN(SECCOMP_RET_ERRNO | EPERM);
  RETURN(SECCOMP_RET_ALLOW);
  RETURN(SECCOMP_RET_ALLOW);
  filter = (struct sock_fprog){at, code};
#undef ADD
#undef LOAD
#undef RETURN
#undef UNLESS
}

/* ------------------------------------------------------------------------------------------- programs */

struct program {
  char **argv, **env;
  int fds[3];
};

static void limit(int what, unsigned long long soft, unsigned long long hard) {
  struct rlimit value = {soft, hard};
  if (setrlimit(what, &value)) _exit(125);
}

/* Makes this process one of the model's: its descriptors, limits and uid, no privileges, the filter. */
static void become_model(const struct program *program) {
  struct __user_cap_header_struct version = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct none[2] = {{0}};
  setsid();
  for (int fd = 0; fd < 3; fd++)
    if (dup2(program->fds[fd], fd) < 0) _exit(125);
  if (syscall(SYS_close_range, 3, ~0U, 0)) _exit(125);
  limit(RLIMIT_CORE, 0, 0);
  limit(RLIMIT_AS, config.address_space, config.address_space);
  limit(RLIMIT_FSIZE, config.file_size, config.file_size);
  limit(RLIMIT_NOFILE, config.open_files, config.open_files);
  limit(RLIMIT_CPU, config.cpu_s, config.cpu_s + 1);
  limit(RLIMIT_NPROC, config.nproc + config.single_uid, config.nproc + config.single_uid); /* init counts */
  limit(RLIMIT_MEMLOCK, 0, 0);
  limit(RLIMIT_MSGQUEUE, 0, 0);
  limit(RLIMIT_SIGPENDING, 256, 256);
  if (!config.single_uid) {
    if (syscall(SYS_setgroups, 0, 0) || syscall(SYS_setresgid, MODEL, MODEL, MODEL) ||
        syscall(SYS_setresuid, MODEL, MODEL, MODEL))
      _exit(125);
  }
  if (syscall(SYS_capset, &version, none)) _exit(125);
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  umask(022);
  if (chdir("/work")) _exit(125);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) _exit(125);
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter)) _exit(125);
}

static void complain(const char *name, const char *what) {
  ssize_t ignored = write(2, name, strlen(name));
  ignored = write(2, what, strlen(what));
  (void)ignored;
}

static void try_to_run(char *path, const struct program *program, int *why) {
  execve(path, program->argv, program->env);
  if (errno == ENOEXEC) { /* a script without a first line that names its interpreter */
    char *script[MAX_STRINGS + 2] = {"sh", path};
    int at = 2;
    for (char **argument = program->argv + 1; *argument && at < MAX_STRINGS; argument++) script[at++] = *argument;
    execve("/bin/sh", script, program->env);
  }
  if (errno != ENOENT && errno != ENOTDIR) *why = errno;
}

/* Runs in a process that shares init's memory until it executes: it changes nothing of it but its stack. */
static int run_program(void *given) {
  const struct program *program = given;
  char *name = program->argv[0], path[4096];
  int why = ENOENT;
  for (int number = 1; number < 65; number++)
    if (number != SIGKILL && number != SIGSTOP) {
      struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        unsigned long mask;
      } standard = {0}; /* libc refuses to touch signals of its own */
      syscall(SYS_rt_sigaction, number, &standard, 0, 8);
    }
  sigset_t nothing;
  sigemptyset(&nothing);
  sigprocmask(SIG_SETMASK, &nothing, 0);
  become_model(program);
  if (strchr(name, '/')) {
    try_to_run(name, program, &why);
  } else {
    const char *folders = "/usr/bin:/bin";
    for (char **entry = program->env; *entry; entry++)
      if (!strncmp(*entry, "PATH=", 5)) folders = *entry + 5;
    for (;;) {
      size_t size = strcspn(folders, ":");
      if (*name && size && size + strlen(name) + 2 < sizeof path) {
        memcpy(path, folders, size);
        path[size] = '/';
        strcpy(path + size + 1, name);
        try_to_run(path, program, &why);
      }
      if (!folders[size]) break;
      folders += size + 1;
    }
  }
  complain(name, why == ENOENT ? ": not found\n" : ": cannot be executed\n");
  if (why == EAGAIN) complain(name, ": Resource temporarily unavailable\n");
  _exit(why == ENOENT ? 127 : 126);
}

/* ----------------------------------------------------------------------------------------------- init */

static int put_tmpfs(const char *path, unsigned long long bytes, const char *mode) {
  char options[200];
  snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=%s,uid=%d,gid=%d", bytes,
           config.work_files + 64, mode, MODEL, MODEL);
  return mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options);
}

/* Empties a tmpfs of init's own by mounting it anew, if anything is in it. */
static void renew_tmpfs(const char *path, unsigned long long bytes) {
  struct statfs use;
  if (statfs(path, &use) == 0 && use.f_files - use.f_ffree <= 1) return;
  if (umount2(path, MNT_DETACH) || put_tmpfs(path, bytes, "1777")) _exit(72);
}

static unsigned long long field_kb(const char *text, const char *name) {
  const char *at = strstr(text, name);
  return at ? strtoull(at + strlen(name), 0, 10) : 0;
}

static unsigned long long sum_kb(const char *file, const char *first, const char *second) {
  char path[64], text[4096];
  unsigned long long total = 0;
  DIR *folder = opendir("/proc");
  if (!folder) return 0;
  for (struct dirent *entry; (entry = readdir(folder));) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !strcmp(entry->d_name, "1")) continue;
    snprintf(path, sizeof path, "/proc/%.20s/%s", entry->d_name, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0) continue;
    text[size] = 0;
    total += field_kb(text, first) + field_kb(text, second);
  }
  closedir(folder);
  return total;
}

/* Whether all programs together hold more memory than they may. What forks share counts once; that is dear
 * to find out, so the cheap sum, which is never smaller, is looked at first. */
static int too_much_memory(void) {
  if (sum_kb("status", "RssAnon:", "RssShmem:") * 1024 <= config.memory) return 0;
  return sum_kb("smaps_rollup", "Pss_Anon:", "Pss_Shmem:") * 1024 > config.memory;
}

struct ending {
  char kind; /* 'x' */
  char oom;
  char padding[2];
  int32_t status;
  uint64_t cpu_us, max_rss_kb;
  uint32_t num_reaped;
  uint32_t more;
};

static void kill_all(void) {
  if (pid_one && getpid() == 1) kill(-1, SIGKILL);
}

/* Reaps; returns whether `main_child` has ended, with its status and use in `ending`. */
static int reap(pid_t main_child, int flags, struct ending *ending) {
  int status, found = 0;
  struct rusage use;
  for (;;) {
    pid_t pid = wait4(-1, &status, flags, &use);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) return found;
    ending->num_reaped++;
    ending->cpu_us += use.ru_utime.tv_sec * 1000000ULL + use.ru_utime.tv_usec + use.ru_stime.tv_sec * 1000000ULL +
                      use.ru_stime.tv_usec;
    if ((uint64_t)use.ru_maxrss > ending->max_rss_kb) ending->max_rss_kb = use.ru_maxrss;
    if (pid == main_child) {
      ending->status = status;
      found = 1;
    }
  }
}

/* Parses "X" u32 preload, u32 argc, u32 envc, strings; returns 0 when it makes sense. */
static int parse_program(ssize_t size, struct program *program, uint32_t *preload) {
  uint32_t head[3];
  if (size < 13) return -1;
  memcpy(head, message + 1, sizeof head);
  if (head[1] < 1 || head[1] + head[2] + 2 > MAX_STRINGS) return -1;
  char *at = message + 13, *end = message + size;
  uint32_t slot = 0;
  program->argv = strings;
  for (uint32_t i = 0; i < head[1] + head[2]; i++) {
    if (i == head[1]) strings[slot++] = 0;
    char *stop = at < end ? memchr(at, 0, end - at) : 0;
    if (!stop) return -1;
    strings[slot++] = at;
    at = stop + 1;
  }
  if (!head[2]) strings[slot++] = 0;
  strings[slot] = 0;
  program->env = strings + head[1] + 1;
  *preload = head[0];
  return 0;
}

/* Shows the program's own words as this process's command line. */
static void show_arguments(char **argv) {
  size_t at = 0;
  if (!argument_area) return;
  for (; *argv && at + 1 < argument_bytes; argv++) {
    size_t size = strlen(*argv) + 1;
    if (size > argument_bytes - at) size = argument_bytes - at;
    memcpy(argument_area + at, *argv, size);
    at += size;
  }
  memset(argument_area + at, 0, argument_bytes - at);
  argument_area[argument_bytes - 1] = 0;
}

/* Serves one sandbox. Returns only in a child that is to run a Python snippet; `strings` holds its words. */
static int init_loop(void) {
  static char stack[CHILD_STACK] __attribute__((aligned(16)));
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  signal(SIGCHLD, SIG_DFL);
  sigprocmask(SIG_SETMASK, &child_signal, 0);
  int signals = signalfd(-1, &child_signal, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) die("signalfd");
  pid_t running = 0;
  struct ending ending = {.kind = 'x'};
  struct signalfd_siginfo ignored;
  for (;;) {
    struct pollfd ready[2] = {{control, POLLIN, 0}, {signals, POLLIN, 0}};
    int num = poll(ready, 2, running ? WATCH_MS : -1);
    if (num < 0 && errno != EINTR) _exit(73);
    if (num == 0 && running && config.memory && too_much_memory()) {
      ending.oom = 1;
      kill_all();
    }
    if (num > 0 && ready[1].revents) {
      while (read(signals, &ignored, sizeof ignored) > 0) continue;
      if (reap(running, WNOHANG, &ending) && running) {
        kill_all();
        reap(0, 0, &ending); /* until nobody is left */
        renew_tmpfs("/tmp", config.tmp_bytes);
        renew_tmpfs("/dev/shm", 1 << 20);
        running = 0;
        if (send_message(control, &ending, sizeof ending, 0, 0)) _exit(0);
      }
    }
    if (num <= 0 || !ready[0].revents) continue;
    int fds[4], num_fds;
    ssize_t size = receive_message(control, fds, &num_fds);
    if (size <= 0) _exit(0); /* the controller is gone, or wants this sandbox gone */
    struct program program;
    uint32_t preload;
    if (message[0] == 'K') {
      if (running) kill_all();
    } else if (message[0] == 'X' && num_fds == 3 && !running && !parse_program(size, &program, &preload)) {
      memcpy(program.fds, fds, sizeof program.fds);
      ending = (struct ending){.kind = 'x'};
      if (preload && may_preload) {
        running = fork();
        if (running == 0) {
          sigset_t nothing;
          sigemptyset(&nothing);
          close(signals);
          sigprocmask(SIG_SETMASK, &nothing, 0);
          become_model(&program);
          show_arguments(program.argv);
          prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* a program may look at itself */
          return 0;
        }
      } else {
        running = clone(run_program, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &program);
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* the child changed its uid while it shared our memory */
      }
      int why = errno;
      for (int i = 0; i < num_fds; i++) close(fds[i]);
      if (running < 0) {
        errno = why;
        die("a process for the program");
      }
      if (send_message(control, "s", 1, 0, 0)) _exit(0);
    } else {
      errno = EINVAL;
      die("a request that makes no sense");
    }
  }
}

static void raise_loopback(void) {
  struct ifreq request = {0};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) die("a socket for the loopback device");
  strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (ioctl(fd, SIOCSIFFLAGS, &request)) die("the loopback device");
  close(fd);
}

/* Becomes pid 1 of a sandbox; `mapped` is a pipe on which one byte says that uids are mapped. */
static void become_init(int socket, int mapped) {
  char byte;
  if (prctl(PR_SET_PDEATHSIG, SIGKILL)) _exit(74);
  pid_one = getpid() == 1;
  if (!pid_one) _exit(74);
  if (dup3(socket, 100, O_CLOEXEC) < 0 || dup3(mapped, 101, O_CLOEXEC) < 0) _exit(74);
  syscall(SYS_close_range, 3, 99, 0);
  syscall(SYS_close_range, 102, ~0U, 0);
  control = 100;
  if (read(101, &byte, 1) != 1) _exit(0);
  close(101);
  if (!config.single_uid) {
    if (syscall(SYS_setgroups, 0, 0) || syscall(SYS_setresgid, 0, 0, 0) || syscall(SYS_setresuid, 0, 0, 0))
      die("the uid of the first process");
  }
  if (prctl(PR_SET_PDEATHSIG, SIGKILL)) die("PR_SET_PDEATHSIG");
  if (unshare(CLONE_NEWNET)) die("a network namespace");
  raise_loopback();
  if (sethostname("sandbox", 7)) die("the host name");
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=2")) die("/proc");
  if (write_file("/proc/sys/user/max_user_namespaces", "0")) die("no more user namespaces");
  if (put_tmpfs("/tmp", config.tmp_bytes, "1777")) die("/tmp");
  if (put_tmpfs("/dev/shm", 1 << 20, "1777")) die("/dev/shm");
  /* Memory that no process holds: kept within bounds where the kernel lets the namespace's owner set them. */
  (void)!write_file("/proc/sys/kernel/shmall", "256");
  (void)!write_file("/proc/sys/kernel/msgmni", "8");
  for (int cap = 0; cap < 64; cap++)
    if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) && errno == EINVAL) break;
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) die("PR_SET_DUMPABLE");
  if (send_message(control, "R", 1, 0, 0)) _exit(0);
}

/* --------------------------------------------------------------------------------------------- zygote */

static void read_config(void) {
  int fds[4], num_fds;
  ssize_t size = receive_message(control, fds, &num_fds);
  if (size <= 0) _exit(0);
  char *kept = malloc(size + 1);
  if (!kept) die("memory");
  memcpy(kept, message, size + 1);
  for (char *at = kept; at < kept + size; at += strlen(at) + 1) {
    char *value = strchr(at, '=');
    if (!value) continue;
    *value++ = 0;
    unsigned long long number = strtoull(value, 0, 10);
#define NUMBER(name) else if (!strcmp(at, #name)) config.name = number
    if (!strcmp(at, "bind") && config.num_binds < MAX_BINDS) config.binds[config.num_binds++].path = value;
    else if (!strcmp(at, "at") && config.num_binds) config.binds[config.num_binds - 1].at = value;
    else if (!strcmp(at, "image")) config.image = value;
    else if (!strcmp(at, "link") && config.num_links < MAX_BINDS) config.links[config.num_links++].path = value;
    else if (!strcmp(at, "target") && config.num_links) config.links[config.num_links - 1].target = value;
    NUMBER(work_bytes);
    NUMBER(work_files);
    NUMBER(tmp_bytes);
    NUMBER(nproc);
    NUMBER(address_space);
    NUMBER(file_size);
    NUMBER(open_files);
    NUMBER(cpu_s);
    NUMBER(memory);
    NUMBER(init_uid);
    NUMBER(model_uid);
#undef NUMBER
    at = value;
  }
}

/* Enters namespaces of its own; afterwards nothing that is mounted here reaches anybody else. */
static void leave_host(void) {
  char text[64];
  unsigned int uid = geteuid(), gid = getegid();
  config.single_uid = !(uid == 0 && config.init_uid && unshare(CLONE_NEWNS) == 0);
  if (config.single_uid) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) die("user and mount namespaces");
    if (write_file("/proc/self/setgroups", "deny")) die("/proc/self/setgroups");
    snprintf(text, sizeof text, "0 %u 1", uid);
    if (write_file("/proc/self/uid_map", text)) die("/proc/self/uid_map");
    snprintf(text, sizeof text, "0 %u 1", gid);
    if (write_file("/proc/self/gid_map", text)) die("/proc/self/gid_map");
  }
  if (mount(0, "/", 0, MS_REC | MS_PRIVATE, 0)) die("private mounts");
}

static void make_folders(const char *path) {
  char part[4096];
  snprintf(part, sizeof part, "%s", path);
  for (char *at = strchr(part + 1, '/'); at; at = strchr(at + 1, '/')) {
    *at = 0;
    if (mkdir(part, 0755) && errno != EEXIST) die("folder %s", part);
    *at = '/';
  }
}

static int take_tree(const char *path, uint64_t attributes) {
  struct cell_mount_attr set = {.attr_set = attributes};
  int fd = syscall(SYS_open_tree, AT_FDCWD, path, TREE_CLONE | TREE_RECURSIVE | O_CLOEXEC);
  if (fd < 0) die("a bind of %s", path);
  if (attributes && syscall(SYS_mount_setattr, fd, "", EMPTY_PATH | TREE_RECURSIVE, &set, sizeof set))
    die("a read-only bind of %s", path);
  return fd;
}

static void put_tree(int tree, const char *path, int folder) {
  make_folders(path);
  if (folder) {
    if (mkdir(path, 0755) && errno != EEXIST) die("folder %s", path);
  } else {
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) die("file %s", path);
    close(fd);
  }
  if (syscall(SYS_move_mount, tree, "", AT_FDCWD, path, MOVE_FROM_EMPTY)) die("bind on %s", path);
  close(tree);
}

static void put_text(const char *path, const char *text) {
  make_folders(path);
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) die("file %s", path);
  close(fd);
}

/* The root of every sandbox: what is bound is read-only, and so is the tmpfs that it lies in. */
static void build_root(void) {
  static const char *devices[] = {"null", "zero", "full", "random", "urandom"};
  static const char *own[] = {"/work", "/tmp", "/dev", "/dev/shm", "/proc", "/etc", "/opt", "/run", "/var", "/var/tmp"};
  static const char *links[][2] = {{"/proc/self/fd", "/dev/fd"},
                                   {"/proc/self/fd/0", "/dev/stdin"},
                                   {"/proc/self/fd/1", "/dev/stdout"},
                                   {"/proc/self/fd/2", "/dev/stderr"}};
  const char *root = "/tmp";
  char path[4200];
  int trees[5], proc, image = -1;
  struct stat info;
  umask(022);
  for (int i = 0; i < config.num_binds; i++)
    config.binds[i].tree = take_tree(config.binds[i].path, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV);
  for (int i = 0; i < 5; i++) {
    snprintf(path, sizeof path, "/dev/%s", devices[i]);
    trees[i] = take_tree(path, ATTR_RDONLY | ATTR_NOSUID | ATTR_NOEXEC);
  }
  proc = take_tree("/proc", 0);
  if (config.image) image = take_tree(config.image, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV);
  if (mount("headway", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m,nr_inodes=4096")) die("a root");
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    snprintf(path, sizeof path, "%s%s", root, own[i]);
    if (mkdir(path, 0755)) die("folder %s", own[i]);
  }
  for (int i = 0; i < config.num_links; i++) {
    snprintf(path, sizeof path, "%s%s", root, config.links[i].path);
    make_folders(path);
    if (config.links[i].target && symlink(config.links[i].target, path)) die("link %s", config.links[i].path);
  }
  for (int i = 0; i < config.num_binds; i++) {
    if (fstatat(config.binds[i].tree, "", &info, AT_EMPTY_PATH)) die("%s", config.binds[i].path);
    snprintf(path, sizeof path, "%s%s", root, config.binds[i].at ? config.binds[i].at : config.binds[i].path);
    put_tree(config.binds[i].tree, path, S_ISDIR(info.st_mode));
  }
  for (int i = 0; i < 5; i++) {
    snprintf(path, sizeof path, "%s/dev/%s", root, devices[i]);
    put_tree(trees[i], path, 0);
  }
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, "%s%s", root, links[i][1]);
    if (symlink(links[i][0], path)) die("link %s", links[i][1]);
  }
  snprintf(path, sizeof path, "%s/etc/passwd", root);
  put_text(path, "model:x:1000:1000:model:/work:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n");
  snprintf(path, sizeof path, "%s/etc/group", root);
  put_text(path, "model:x:1000:\nnogroup:x:65534:\n");
  snprintf(path, sizeof path, "%s/etc/hosts", root);
  put_text(path, "127.0.0.1 localhost sandbox\n::1 localhost\n");
  snprintf(path, sizeof path, "%s/proc", root);
  put_tree(proc, path, 1);
  snprintf(path, sizeof path, "%s" UPPER, root);
  make_folders(path);
  snprintf(path, sizeof path, "%s" IMAGE, root);
  if (config.image) put_tree(image, path, 1);
  struct cell_mount_attr set = {.attr_set = ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV};
  if (syscall(SYS_mount_setattr, AT_FDCWD, root, 0, &set, sizeof set)) die("a read-only root");
  if (chdir(root) || syscall(SYS_pivot_root, ".", ".")) die("pivot_root");
  if (umount2(".", MNT_DETACH) || chdir("/")) die("leaving the host's root");
}

/* Mounts a work folder at /work and opens it; returns 0, or -1 and the step that failed. Over an image it is an
 * overlay, whose upper folder is opened as well: it holds what was changed, on a tmpfs with the same caps. */
static int make_work(int *work, int *upper, const char **step) {
  char options[200];
  unsigned int owner = config.single_uid ? 0 : config.model_uid;
  const char *place = config.image ? SPACE : "/work";
  *step = "a tmpfs for the work folder";
  snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=700,uid=%u,gid=%u", config.work_bytes,
           config.work_files + (config.image ? 4 : 1), owner, owner);
  if (mount("work", place, "tmpfs", MS_NOSUID | MS_NODEV, options)) return -1;
  if (config.image) {
    *step = "an overlay for the work folder";
    int failed = mkdir(UPPER, 0700) || chown(UPPER, owner, owner) || mkdir(SPACE "/work", 0700) ||
                 mount("work", "/work", "overlay", MS_NOSUID | MS_NODEV,
                       "lowerdir=" IMAGE ",upperdir=" UPPER ",workdir=" SPACE "/work,userxattr,index=off,metacopy=off");
    if (!failed) *upper = open(UPPER, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int why = errno;
    umount2(SPACE, MNT_DETACH); /* the overlay holds it */
    errno = why;
    if (failed) return -1;
    if (*upper < 0) goto failed;
  }
  *work = open("/work", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (*work >= 0) return 0;
failed:;
  int why = errno;
  umount2("/work", MNT_DETACH);
  errno = why;
  return -1;
}

/* Whether work folders can lie over the image: the kernel and the owner of its files allow it. */
static int try_image(void) {
  int work = -1, upper = -1;
  const char *step;
  struct stat info;
  if (stat(IMAGE, &info) || info.st_uid != (config.single_uid ? 0 : config.model_uid)) return 0;
  /* Without it, a folder of the image that was removed could not be made again. */
  int done = make_work(&work, &upper, &step) == 0 && fsetxattr(upper, "user.overlay.opaque", "n", 1, 0) == 0;
  if (work >= 0) umount2("/work", MNT_DETACH);
  if (work >= 0) close(work);
  if (upper >= 0) close(upper);
  return done;
}

/* Answers "C" u32 with a sandbox: "c" u32 and its first process and its work folder (and the upper folder of
 * that), or "e" u32 and why not. */
static int make_sandbox(int socket) {
  char answer[300], path[64], text[64];
  int made[3], mapped[2] = {-1, -1}, pid_fd = -1, work = -1, upper = -1;
  const char *step;
  int mounted = 0;
  pid_t pid = -1;
  memcpy(answer, message, 5);
  if (make_work(&work, &upper, &step)) goto failed;
  mounted = 1;
  step = "a pipe";
  if (pipe2(mapped, O_CLOEXEC)) goto failed;
  step = "new namespaces";
  struct clone_args arguments = {
      .flags = (NAMESPACES & ~CLONE_NEWNET) | CLONE_PIDFD, .pidfd = (uintptr_t)&pid_fd, .exit_signal = SIGCHLD};
  pid = syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid == 0) {
    become_init(socket, mapped[0]);
    return 1;
  }
  if (pid < 0) goto failed;
  step = "uids for new namespaces";
  snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
  if (config.single_uid) snprintf(text, sizeof text, "%d 0 1", MODEL);
  else snprintf(text, sizeof text, "0 %u 1\n%d %u 1\n", config.init_uid, MODEL, config.model_uid);
  if (write_file(path, text)) goto failed;
  if (config.single_uid) {
    snprintf(path, sizeof path, "/proc/%d/setgroups", pid);
    if (write_file(path, "deny")) goto failed;
  }
  snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
  if (write_file(path, text)) goto failed;
  if (write(mapped[1], "m", 1) != 1) goto failed;
  umount2("/work", MNT_DETACH);
  answer[0] = 'c';
  made[0] = pid_fd;
  made[1] = work;
  made[2] = upper;
  if (send_message(control, answer, 5, made, upper < 0 ? 2 : 3)) _exit(0);
  goto done;
failed:
  answer[0] = 'e';
  snprintf(answer + 5, sizeof answer - 5, "%s: %s", step, strerror(errno));
  if (mounted) umount2("/work", MNT_DETACH);
  if (pid > 0) syscall(SYS_pidfd_send_signal, pid_fd, SIGKILL, 0, 0);
  send_message(control, answer, 5 + strlen(answer + 5), 0, 0);
done:
  close(socket);
  if (work >= 0) close(work);
  if (upper >= 0) close(upper);
  if (pid_fd >= 0) close(pid_fd);
  if (mapped[0] >= 0) close(mapped[0]);
  if (mapped[1] >= 0) close(mapped[1]);
  return 0;
}

static void find_arguments(void) {
  char text[2048];
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  ssize_t size = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (size <= 0) return;
  text[size] = 0;
  char *at = strrchr(text, ')');
  for (int field = 2; at && field < 48; field++) at = strchr(at + 1, ' ');
  if (!at) return;
  unsigned long long start = strtoull(at + 1, &at, 10), end = strtoull(at, 0, 10);
  if (!start || end <= start) return;
  argument_area = (char *)(uintptr_t)start;
  argument_bytes = end - start;
}

/* Serves a controller on `socket` until its end, when the process ends. `preloaded`: see the top. */
int cell_serve(int socket, int preloaded) {
  static char *none[] = {"cell", 0};
  control = socket;
  may_preload = preloaded;
  read_config();
  dup2(0, 1); /* /dev/null */
  dup2(0, 2);
  find_arguments();
  show_arguments(none);
  (void)!write_file("/proc/self/oom_score_adj", "500"); /* rather a sandbox than the trainer */
  leave_host();
  build_filter();
  build_root();
  signal(SIGCHLD, SIG_IGN); /* nobody waits for a sandbox's first process: the controller watches its pidfd */
  if (config.image && !try_image()) config.image = 0;
  char ready[3] = {'R', config.single_uid ? 'u' : 'r', config.image ? 'o' : 'p'};
  if (send_message(control, ready, 3, 0, 0)) _exit(0);
  for (;;) {
    int fds[4], num_fds;
    ssize_t size = receive_message(control, fds, &num_fds);
    if (size <= 0) _exit(0);
    if (message[0] != 'C' || size != 5 || num_fds != 1) _exit(75);
    if (make_sandbox(fds[0])) return init_loop();
  }
}

/* The words of the snippet that `cell_serve` returned for, NULL at the end; the environment follows. */
char **cell_words(void) { return strings; }

int main(int argc, char **argv) { return argc == 2 ? cell_serve(atoi(argv[1]), 0) : 64; }
