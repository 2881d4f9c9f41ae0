/* The zygote of the local sandbox provider, the first process of every sandbox, and two helpers of theirs.
 *
 * The zygote consumes requests of the controller on one SEQPACKET socket, and the ends of its children; it
 * ends, with all of them, at the socket's end. It builds, once, a read-only root of its own (a tmpfs with
 * binds of the system's folders) in a private mount namespace, pivots into it and drops the host's root. For
 * each request it makes a tmpfs for the work folder and clones a child into new user, pid, mount, ipc, uts
 * and cgroup namespaces, and into a network namespace that a helper ("net maker") made ahead.
 *
 * That child is pid 1 of the sandbox ("init"). It finishes the setup (/proc, /tmp), and then consumes commands
 * on a socket of its own: it runs one command at a time as the model's uid, and long-lived ones beside it,
 * reaps every process, kills what a command left behind, and ends, and with it the whole pid namespace, at the
 * socket's end. So a controller that dies at any moment takes everything with it.
 *
 * The other helper ("nest") is a Python interpreter that has imported the usual modules and calls `cell_nest`
 * of this source, built as a library. At the request of an init it forks a child straight into that sandbox's
 * namespaces; `cell_nest` returns there, to run a snippet, and nowhere else. So a sandbox costs no interpreter.
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
#include <netinet/in.h>
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
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
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
#define MAX_FDS 20
#define MAX_GROUPS 3
#define MAX_GROUP_FILES 4
#define MAX_SPAWNED 32
#define MAX_SEEN 4096
#define CHILD_STACK (256 * 1024)
#define MAX_REAPED 1024
#define WATCH_US 100000
#define QUICK_US 3000 /* a command that ends sooner is told of once, not at its start and its end */
#define STOCK 4       /* of what is made ahead of sandboxes */
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
  const char *image; /* folder that every work folder begins with, found below an overlay; 0 for none */
  int num_binds, num_links, num_groups, born_inside; /* the last: with cgroup version 2 */
  const char *interpreter, *nest; /* the nest's program and its text; none where Python is not preloaded */
  int library;
  struct {
    int fd, num_files; /* the folder in which each sandbox gets a folder of its own */
    const char *name, *files[MAX_GROUP_FILES], *values[MAX_GROUP_FILES], *events, *peak;
  } groups[MAX_GROUPS];
  struct {
    const char *path, *at; /* on the host, and inside where that is another name */
    int tree;
  } binds[MAX_BINDS];
  struct {
    const char *path, *target;
  } links[MAX_BINDS];
} config;

static int control = -1;        /* to the controller; of the zygote, later of init */
static int nest = -1;           /* where init asks for a snippet */
static int filtered = 0;        /* set in init: programs inherit its filter */
static uint64_t secret = 0;     /* with which init may mount */
static int pid_one = 0;         /* set in init only: kill(-1) reaches this sandbox and nobody else */
static char message[MAX_MESSAGE];
static char *strings[MAX_STRINGS];
static char *argument_area = 0; /* what /proc/<pid>/cmdline shows */
static size_t argument_bytes = 0;
static struct sock_fprog filters[2]; /* the second refuses System V's memory, queues and semaphores too */
static int no_sysv = 0;              /* set in init: they have no limits here */

/* ------------------------------------------------------------------------------------------- messages */

static int send_message(int socket, const void *data, size_t size, const int *fds, int num_fds) {
  char space[CMSG_SPACE(MAX_FDS * sizeof(int))] = {0};
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
  char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
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

static uint64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000ULL + now.tv_nsec / 1000;
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

/* Refused where init could not limit what they hold. */
static const int sysv[] = {SYS_shmget, SYS_msgget, SYS_semget};
#define NUM_SYSV (sizeof sysv / sizeof *sysv)

enum verdict {
  ALLOW,
  REFUSE,
  NO_SUCH_CALL,
  LOOK_AT_CLONE,
  LOOK_AT_IOCTL,
  LOOK_AT_FCNTL,
  LOOK_AT_SOCKET,
  LOOK_AT_PRCTL,
  LOOK_AT_SECRET,
  NUM_VERDICTS
};
struct rule {
  uint32_t number;
  enum verdict verdict;
};
/* Jumps of a filter reach 255 instructions. */
struct code {
  struct sock_filter at[255];
  int size;
};

static int by_number(const void *one, const void *other) {
  uint32_t a = ((const struct rule *)one)->number, b = ((const struct rule *)other)->number;
  return a < b ? -1 : a > b;
}

/* A tree of comparisons, for the kernel runs the filter for every call that there is, at each installation; it
 * ends at one of `verdict_at`. `count` rules take 2 * count - 1 instructions. */
static void add_rules(struct code *code, const struct rule *rules, int count, const int *verdict_at) {
  int at = code->size++, half = count / 2;
  if (count == 1) {
    code->at[at] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rules->number,
                                                verdict_at[rules->verdict] - at - 1, verdict_at[ALLOW] - at - 1);
    return;
  }
  add_rules(code, rules, half, verdict_at);
  code->at[at] =
      (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, rules[half].number, code->size - at - 1, 0);
  add_rules(code, rules + half, count - half, verdict_at);
}

#define ADD(...) code->at[code->size++] = (struct sock_filter)__VA_ARGS__
#define LOAD(field) ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field)))
#define RETURN(what) ADD(BPF_STMT(BPF_RET | BPF_K, what))
#define IF(value, yes, no) ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no))

/* What follows the tree: each verdict's instructions; `begins` says where they do. */
static void add_verdicts(struct code *code, uint64_t secret, int *begins) {
  begins[ALLOW] = code->size;
  RETURN(SECCOMP_RET_ALLOW);
  begins[REFUSE] = code->size;
  RETURN(SECCOMP_RET_ERRNO | EPERM);
  /* Its flags lie in memory, where a filter cannot look; libc goes on with clone. */
  begins[NO_SUCH_CALL] = code->size;
  RETURN(SECCOMP_RET_ERRNO | ENOSYS);
  begins[LOOK_AT_CLONE] = code->size;
  LOAD(args[0]);
  ADD(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1));
  RETURN(SECCOMP_RET_ERRNO | EPERM);
  RETURN(SECCOMP_RET_ALLOW);
  begins[LOOK_AT_IOCTL] = code->size;
  LOAD(args[1]);
  IF(0x5412 /* TIOCSTI */, 1, 0);
  IF(0x541c /* TIOCLINUX */, 0, 1);
  RETURN(SECCOMP_RET_ERRNO | EPERM);
  RETURN(SECCOMP_RET_ALLOW);
  /* A lease would hold up whoever opens the file on the host. */
  begins[LOOK_AT_FCNTL] = code->size;
  LOAD(args[1]);
  IF(1024 /* F_SETLEASE */, 1, 0);
  IF(1040 /* F_SETDELEG */, 0, 1);
  RETURN(SECCOMP_RET_ERRNO | EPERM);
  RETURN(SECCOMP_RET_ALLOW);
  /* Other families reach what no network namespace holds: AF_VSOCK the hypervisor and every other sandbox. */
  begins[LOOK_AT_SOCKET] = code->size;
  LOAD(args[0]);
  IF(AF_UNIX, 4, 0);
  IF(AF_INET, 3, 0);
  IF(AF_INET6, 2, 0);
  IF(AF_NETLINK, 1, 0);
  RETURN(SECCOMP_RET_ERRNO | EAFNOSUPPORT);
  RETURN(SECCOMP_RET_ALLOW);
  /* A process that is not dumpable would hide from init. */
  begins[LOOK_AT_PRCTL] = code->size;
  LOAD(args[0]);
  IF(PR_SET_DUMPABLE, 1, 0);
  RETURN(SECCOMP_RET_ALLOW);
  LOAD(args[1]);
  IF(0, 1, 0);
  RETURN(SECCOMP_RET_ALLOW);
  begins[LOOK_AT_SECRET] = code->size;
  if (secret) {
    LOAD(args[5]);
    IF((uint32_t)secret, 0, 3);
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[5]) + 4));
    IF((uint32_t)(secret >> 32), 0, 1);
    RETURN(SECCOMP_RET_ALLOW);
  }
  RETURN(SECCOMP_RET_ERRNO | EPERM);
}

/* With a `secret`, some calls are allowed to whoever passes it as the sixth argument, which those calls ignore:
 * init, which has the filter too, so that programs inherit it. It lies in memory that no program can read, and
 * a program could not mount with it either, for it has no capabilities. */
static void build_filter(uint64_t secret, int without_sysv) {
  static struct code codes[2], tail;
  static struct rule rules[NUM_REFUSED + NUM_SYSV + 6];
  struct code *code = &codes[without_sysv];
  int count = 0, kept = 0, verdict_at[NUM_VERDICTS];
  for (size_t i = 0; i < NUM_REFUSED; i++) {
    int mounts = refused[i] == SYS_mount || refused[i] == SYS_umount2;
    rules[count++] = (struct rule){refused[i], mounts ? LOOK_AT_SECRET : REFUSE};
  }
  for (size_t i = 0; without_sysv && i < NUM_SYSV; i++) rules[count++] = (struct rule){sysv[i], REFUSE};
  rules[count++] = (struct rule){SYS_clone3, NO_SUCH_CALL};
  rules[count++] = (struct rule){SYS_clone, LOOK_AT_CLONE};
  rules[count++] = (struct rule){SYS_ioctl, LOOK_AT_IOCTL};
  rules[count++] = (struct rule){SYS_fcntl, LOOK_AT_FCNTL};
  rules[count++] = (struct rule){SYS_socket, LOOK_AT_SOCKET};
  rules[count++] = (struct rule){SYS_prctl, LOOK_AT_PRCTL};
  qsort(rules, count, sizeof *rules, by_number);
  for (int i = 0; i < count; i++)
    if (!kept || rules[kept - 1].number != rules[i].number) rules[kept++] = rules[i];
  code->size = tail.size = 0;
  LOAD(arch);
  IF(THIS_ARCH, 1, 0);
  RETURN(SECCOMP_RET_ERRNO | EPERM);
  LOAD(nr);
#ifdef __x86_64__
  ADD(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1)); /* the x32 names of the same calls */
  RETURN(SECCOMP_RET_ERRNO | EPERM);
#endif
  add_verdicts(&tail, secret, verdict_at);
  int tree_end = code->size + 2 * kept - 1;
  for (int i = 0; i < NUM_VERDICTS; i++) verdict_at[i] += tree_end;
  if (tree_end + tail.size > (int)(sizeof code->at / sizeof *code->at)) die("the system-call filter's length");
  add_rules(code, rules, kept, verdict_at);
  memcpy(code->at + code->size, tail.at, tail.size * sizeof *tail.at);
  code->size += tail.size;
  filters[without_sysv] = (struct sock_fprog){code->size, code->at};
}
#undef ADD
#undef LOAD
#undef RETURN
#undef IF

static void build_filters(uint64_t secret) {
  build_filter(secret, 0);
  build_filter(secret, 1);
}

/* ------------------------------------------------------------------------------------------- programs */

#define SNIPPET 1  /* flags of a request: may be a fork of the nest; */
#define NO_INPUT 2 /* comes without a descriptor for stdin */
#define NO_SYSV 4  /* set by init for the nest: the second filter */

struct program {
  uint32_t flags, id; /* 0 for the command, else of a long-lived process */
  char *cwd, **argv, **env;
  int fds[3];
  int kept; /* becomes number 3; 0 for none */
};

static void limit(int what, unsigned long long soft, unsigned long long hard) {
  struct rlimit value = {soft, hard};
  if (setrlimit(what, &value)) _exit(125);
}

static void complain(const char *name, const char *what) {
  ssize_t ignored = write(2, name, strlen(name));
  ignored = write(2, what, strlen(what));
  (void)ignored;
}

/* Makes this process one of the model's: its descriptors, limits and uid, no privileges, the filter. */
static void become_model(const struct program *program) {
  struct __user_cap_header_struct version = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct none[2] = {{0}};
  setsid();
  for (int fd = 0; fd < 3; fd++)
    if (dup2(program->fds[fd], fd) < 0) _exit(125);
  if (program->kept && program->kept != 3 && dup3(program->kept, 3, O_CLOEXEC) < 0) _exit(125);
  if (syscall(SYS_close_range, program->kept ? 4 : 3, ~0U, 0)) _exit(125);
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
  if (program->id) prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* what it leaves behind is still its own */
  if (chdir("/work")) _exit(125);
  if (*program->cwd && chdir(program->cwd)) {
    complain(program->cwd, ": cannot be entered\n");
    _exit(126);
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) _exit(125);
  if (!filtered && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filters[!!(program->flags & NO_SYSV)]))
    _exit(125);
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

/* Runs in a process that may share init's memory until it executes: it changes nothing of it but its stack. */
static int run_program(void *given) {
  const struct program *program = given;
  char *name = program->argv[0], path[4096];
  int why = ENOENT;
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
  return syscall(SYS_mount, "tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options, secret);
}

/* Empties a tmpfs of init's own by mounting it anew, if anything is in it. */
static void renew_tmpfs(const char *path, unsigned long long bytes) {
  struct statfs use;
  if (statfs(path, &use) == 0 && use.f_files - use.f_ffree <= 1) return;
  if (syscall(SYS_umount2, path, MNT_DETACH, 0, 0, 0, secret) || put_tmpfs(path, bytes, "1777")) _exit(72);
}

static ssize_t read_text(const char *path, char *text, size_t room) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t size = read(fd, text, room - 1);
  close(fd);
  text[size > 0 ? size : 0] = 0;
  return size;
}

static unsigned long long field_kb(const char *text, const char *name) {
  const char *at = strstr(text, name);
  return at ? strtoull(at + strlen(name), 0, 10) : 0;
}

/* Fills in the pids that there are but init's own; returns how many. */
static int list_processes(pid_t *pids) {
  int count = 0;
  DIR *folder = opendir("/proc");
  if (!folder) return 0;
  for (struct dirent *entry; (entry = readdir(folder)) && count < MAX_SEEN;)
    if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && strcmp(entry->d_name, "1"))
      pids[count++] = atoi(entry->d_name);
  closedir(folder);
  return count;
}

static pid_t seen[MAX_SEEN], parents[MAX_SEEN];

/* Reads a file of /proc/<pid> that tells of its memory; of a thread that lives when the first one has ended. */
static int read_memory(pid_t pid, const char *file, const char *field, char *text, size_t room) {
  char path[300];
  snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
  int found = read_text(path, text, room) > 0 && strstr(text, field);
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR *threads = found ? 0 : opendir(path);
  for (struct dirent *entry; threads && !found && (entry = readdir(threads));) {
    snprintf(path, sizeof path, "/proc/%d/task/%s/%s", pid, entry->d_name, file);
    found = entry->d_name[0] != '.' && read_text(path, text, room) > 0 && strstr(text, field);
  }
  if (threads) closedir(threads);
  return found;
}

static unsigned long long sum_kb(const char *file, const char *first, const char *second) {
  char text[4096];
  unsigned long long total = 0;
  int count = list_processes(seen);
  for (int i = 0; i < count; i++)
    if (read_memory(seen[i], file, first, text, sizeof text)) total += field_kb(text, first) + field_kb(text, second);
  return total;
}

/* Whether all programs together hold more memory than they may. What forks share counts once; that is dear
 * to find out, so the cheap sum, which is never smaller, is looked at first. */
static int too_much_memory(void) {
  if (sum_kb("status", "RssAnon:", "RssShmem:") * 1024 <= config.memory) return 0;
  return sum_kb("smaps_rollup", "Pss_Anon:", "Pss_Shmem:") * 1024 > config.memory;
}

/* The fields of /proc/<pid>/stat from the state (number 3) on, or NULL. */
static char *stat_fields(pid_t pid, char *text, size_t room) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  if (read_text(path, text, room) <= 0) return 0;
  char *at = strrchr(text, ')');
  return at ? at + 2 : 0;
}

struct ending {
  char kind; /* 'x' */
  char oom;
  char padding[2];
  int32_t status;
  uint64_t cpu_us, max_rss_kb, wall_us;
  uint32_t num_started, id;
};

static struct {
  int alive;
  pid_t pid;
  uint64_t began_us;
  uint32_t first_pid;
  struct ending ending;
} commands[MAX_SPAWNED + 1]; /* number 0 is the command that is not long-lived */

static int num_spawned = 0, paused = 0;
static int untold = 0;       /* the command has ended and what it left behind is still to be ended */
static int reply = -1;       /* of the nest, while the command is its child */
static int unborn = 0;       /* the nest was asked for the command and has not answered */
static int outside = 0;      /* its child cannot be seen, killed and stopped in the sandbox yet */
static int kill_snippet = 0; /* as soon as it is there */
static int owed_pause = 0;   /* so does the order to stop everything */
static uint64_t ended_cpu_us = 0;
static int loads = -1, events = -1, peak = -1, groups[MAX_GROUPS] = {-1, -1, -1};
static uint64_t oom_kills = 0;

static void kill_all(int number) {
  if (pid_one && getpid() == 1) kill(-1, number);
}

/* The pid that was last given out in here. */
static uint32_t last_pid(void) {
  char text[128];
  ssize_t size = pread(loads, text, sizeof text - 1, 0);
  if (size <= 0) return 0;
  text[size] = 0;
  char *at = strrchr(text, ' ');
  return at ? strtoul(at + 1, 0, 10) : 0;
}

static uint64_t count_oom_kills(void) {
  char text[512];
  ssize_t size = events < 0 ? 0 : pread(events, text, sizeof text - 1, 0);
  if (size <= 0) return 0;
  text[size] = 0;
  char *at = strstr(text, "oom_kill ");
  return at ? strtoull(at + 9, 0, 10) : 0;
}

/* Which command a process belongs to: a long-lived one if that is above it, else the other. */
static int owner(int index, int count) {
  for (int depth = 0; depth < count; depth++) {
    for (int i = 1; num_spawned && i <= MAX_SPAWNED; i++)
      if (commands[i].alive && commands[i].pid == seen[index]) return i;
    if (parents[index] <= 1) return 0;
    int above = 0;
    while (above < count && seen[above] != parents[index]) above++;
    if (above == count) return 0;
    index = above;
  }
  return 0;
}

/* Kills what belongs to a command; returns how many processes that were. Everything is stopped meanwhile, so
 * that none can fork away. */
static int kill_tree(int number) {
  char text[1024];
  int killed = 0;
  if (!paused) kill_all(SIGSTOP);
  int count = list_processes(seen);
  for (int i = 0; i < count; i++) {
    char *at = stat_fields(seen[i], text, sizeof text);
    parents[i] = at ? atoi(at + 2) : 0;
  }
  for (int i = 0; i < count; i++)
    if (owner(i, count) == number) {
      kill(seen[i], SIGKILL);
      killed++;
    }
  if (!paused) kill_all(SIGCONT);
  return killed;
}

static int reap(void);

/* Ends what a command left behind; where there are no others, that is everything. */
static void clear(int number) {
  /* Until it executes, it shows in /proc to nobody in here. */
  if (commands[number].alive && commands[number].pid > 0) kill(commands[number].pid, SIGKILL);
  if (!num_spawned) {
    while (reap() != -1) { /* until nobody is left; mostly nobody was, and a signal to all looks at the whole host */
      kill_all(SIGKILL);
      struct timespec moment = {0, 200000};
      nanosleep(&moment, 0);
    }
    return;
  }
  for (int tries = 0; tries < 500 && kill_tree(number); tries++) {
    struct timespec moment = {0, 500000};
    nanosleep(&moment, 0);
    reap();
  }
}

static void account(struct ending *ending, const struct rusage *use) {
  uint64_t spent = use->ru_utime.tv_sec * 1000000ULL + use->ru_utime.tv_usec + use->ru_stime.tv_sec * 1000000ULL +
                   use->ru_stime.tv_usec;
  ending->cpu_us += spent;
  ended_cpu_us += spent;
  if ((uint64_t)use->ru_maxrss > ending->max_rss_kb) ending->max_rss_kb = use->ru_maxrss;
}

static void end_command(int number, int status) {
  uint32_t started = last_pid() - commands[number].first_pid;
  commands[number].alive = 0;
  untold |= !number;
  commands[number].ending.status = status;
  commands[number].ending.wall_us = now_us() - commands[number].began_us;
  commands[number].ending.num_started = started && started < 1U << 22 ? started : 1;
}

/* Tells of a command's end; what it left behind is gone by then. */
static void tell_end(int number) {
  struct ending *ending = &commands[number].ending;
  uint64_t kills = count_oom_kills();
  if (kills > oom_kills && ending->status) ending->oom = 1;
  oom_kills = kills;
  if (peak >= 0 && !number) {
    char text[32] = "";
    if (pread(peak, text, sizeof text - 1, 0) > 0) ending->max_rss_kb = strtoull(text, 0, 10) >> 10;
  }
  if (send_message(control, ending, sizeof *ending, 0, 0)) _exit(0);
}

/* Reaps who has ended; returns -1 when init has no child, 1 when more may have ended: who forks all the time
 * must not hold up the rest. Long-lived commands are told of here. */
static int reap(void) {
  int status;
  struct rusage use;
  for (int count = 0; count < MAX_REAPED; count++) {
    pid_t pid = wait4(-1, &status, WNOHANG, &use);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) return -1;
    if (pid == 0) return 0;
    int number = MAX_SPAWNED;
    while (number > 0 && !(commands[number].alive && commands[number].pid == pid)) number--;
    account(&commands[number].ending, &use);
    if (number) {
      end_command(number, status);
      num_spawned--;
      if (!commands[0].alive && !untold) clear(0); /* what it left behind is nobody's */
      tell_end(number);
    } else if (commands[0].alive && reply < 0 && commands[0].pid == pid) {
      end_command(0, status);
    }
  }
  return 1;
}

/* Parses 'X', four numbers (flags, id, argc, envc) and strings (cwd, argv, env); returns 0 when it makes sense. */
static int parse_program(ssize_t size, struct program *program) {
  uint32_t head[4];
  if (size < 17) return -1;
  memcpy(head, message + 1, sizeof head);
  program->flags = head[0];
  program->id = head[1];
  if (head[1] > MAX_SPAWNED || head[2] < 1 || head[2] > MAX_STRINGS || head[3] > MAX_STRINGS) return -1;
  if (head[2] + head[3] + 2 > MAX_STRINGS) return -1;
  char *at = message + 17, *end = message + size;
  uint32_t slot = 0;
  program->cwd = at;
  at = at < end ? memchr(at, 0, end - at) : 0;
  if (!at) return -1;
  at++;
  program->argv = strings;
  for (uint32_t i = 0; i < head[2] + head[3]; i++) {
    if (i == head[2]) strings[slot++] = 0;
    char *stop = at < end ? memchr(at, 0, end - at) : 0;
    if (!stop) return -1;
    strings[slot++] = at;
    at = stop + 1;
  }
  if (!head[3]) strings[slot++] = 0;
  strings[slot] = 0;
  program->env = strings + head[2] + 1;
  return 0;
}

/* Asks the nest for a fork that runs a snippet; `message` is passed on as it came. Returns 0 when it was asked. */
static int ask_nest(ssize_t size, const int *streams) {
  static const char *names[] = {"net", "user", "mnt", "ipc", "uts", "cgroup", "pid"};
  int fds[MAX_FDS], count = 1, ends[2];
  char path[32];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) return -1;
  fds[0] = ends[1]; /* the first, so that a nest without descriptors can still say so */
  for (int i = 0; i < 7; i++) {
    snprintf(path, sizeof path, "/proc/self/ns/%s", names[i]);
    fds[count] = open(path, O_RDONLY | O_CLOEXEC);
    if (fds[count] < 0) break;
    count++;
  }
  int opened = count, failed = count < 8;
  for (int i = 0; i < 3; i++) fds[count++] = streams[i];
  for (int i = 0; i < MAX_GROUPS; i++)
    if (groups[i] >= 0) fds[count++] = groups[i];
  if (no_sysv) message[1] |= NO_SYSV; /* the lowest byte of the flags */
  failed = failed || send_message(nest, message, size, fds, count);
  for (int i = 0; i < opened; i++) close(fds[i]);
  if (failed) close(ends[0]);
  else reply = ends[0];
  return failed ? -1 : 0;
}

/* Starts a program; returns 0, or -1 with errno. */
static int start_program(ssize_t size, struct program *program) {
  static char stack[CHILD_STACK] __attribute__((aligned(16)));
  int number = program->id;
  uint32_t first = last_pid();
  uint64_t began_us = now_us();
  if (!number && peak >= 0) (void)!pwrite(peak, "0", 1, 0);
  if (!number && (program->flags & SNIPPET) && nest >= 0 && !ask_nest(size, program->fds)) {
    commands[0].pid = 0;
    unborn = outside = 1;
  } else {
    /* Others may stop the child before it executes, so init must not wait for it when there are others. */
    int alone = !num_spawned && !commands[0].alive;
    pid_t pid = clone(run_program, stack + sizeof stack, (alone ? CLONE_VM | CLONE_VFORK : 0) | SIGCHLD, program);
    int why = errno;
    /* The child changed its uid while it shared our memory. */
    if (alone) syscall(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0, secret);
    errno = why;
    if (pid < 0) return -1;
    commands[number].pid = pid;
  }
  commands[number].alive = 1;
  commands[number].began_us = began_us;
  commands[number].first_pid = first;
  commands[number].ending = (struct ending){.kind = 'x', .id = number};
  num_spawned += number > 0;
  return 0;
}

static void tell_start(int number) {
  struct {
    char kind, padding[3];
    uint32_t id;
    uint64_t since_us;
  } started = {'s', {0}, number, now_us() - commands[number].began_us};
  if (send_message(control, &started, sizeof started, 0, 0)) _exit(0);
}

static void answer(char kind) {
  if (send_message(control, &kind, 1, 0, 0)) _exit(0);
}

static void pause_all(void) {
  paused = 1;
  owed_pause = 0;
  kill_all(SIGSTOP);
  answer('z');
}

/* The nest's child is in the sandbox, or over: what was to be done with it can be. */
static void catch_up(void) {
  outside = 0;
  if (kill_snippet && num_spawned) clear(0);
  else if (kill_snippet) kill_all(SIGKILL);
  if (owed_pause) pause_all();
}

/* What the nest says of its child: 's' when there is one, then how it ended; and the child, 'i' when it is in. */
static void hear_nest(void) {
  struct {
    int32_t kind, status;
    struct rusage use;
  } said = {0};
  ssize_t size = recv(reply, &said, sizeof said, 0);
  if (size == sizeof said && said.kind == 's') {
    commands[0].began_us = now_us();
    unborn = 0;
  } else if (size == sizeof said && said.kind == 'i') {
    catch_up();
  } else if (size == sizeof said && said.kind == 'x' && (!outside || WIFSIGNALED(said.status))) {
    close(reply);
    reply = -1;
    unborn = 0;
    account(&commands[0].ending, &said.use);
    end_command(0, said.status);
    catch_up();
  } else if (size == sizeof said) {
    errno = said.kind == 'e' ? said.status : ECHILD;
    die("a fork of the preloaded interpreter");
  } else {
    errno = EPIPE;
    die("the preloaded interpreter, which has ended");
  }
}

static void tell_stats(void) {
  struct {
    char kind, padding[3];
    uint32_t num_processes;
    uint64_t cpu_us, memory_kb;
  } stats = {'q', {0}, 0, ended_cpu_us, 0};
  char text[1024];
  unsigned long long ticks = 0;
  stats.memory_kb = sum_kb("status", "RssAnon:", "RssShmem:");
  int count = list_processes(seen), hidden = 0; /* the latter have not executed yet */
  for (int number = 0; number <= MAX_SPAWNED; number++) {
    int at = commands[number].alive && commands[number].pid > 0 ? 0 : count + 1;
    while (at < count && seen[at] != commands[number].pid) at++;
    hidden += at == count;
  }
  stats.num_processes = count + hidden;
  for (int i = 0; i < count; i++) {
    char *at = stat_fields(seen[i], text, sizeof text);
    for (int field = 3; at && field < 14; field++) at = (at = strchr(at, ' ')) ? at + 1 : 0;
    for (int field = 0; at && field < 4; field++) ticks += strtoull(at, &at, 10);
  }
  stats.cpu_us += ticks * 1000000 / sysconf(_SC_CLK_TCK);
  if (send_message(control, &stats, sizeof stats, 0, 0)) _exit(0);
}

/* Answers 'L' u16 u16 (a port, and how many may wait in line) with 'l' and a socket that listens there, in the
 * sandbox's network, or with 'l' and why not. Nothing in here keeps it. */
static void listen_for_controller(void) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  char said[100] = "l";
  uint16_t asked[2];
  int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  memcpy(asked, message + 1, sizeof asked);
  at.sin_port = htons(asked[0]);
  int failed = fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
               bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, asked[1]);
  if (failed) snprintf(said + 1, sizeof said - 1, "%s", strerror(errno));
  if (send_message(control, said, strlen(said), &fd, !failed)) _exit(0);
  if (fd >= 0) close(fd);
}

/* Does what the controller asks for. */
static void obey(int null) {
  int fds[MAX_FDS], num_fds;
  ssize_t size = receive_message(control, fds, &num_fds);
  struct program program = {0};
  uint32_t id;
  if (size <= 0) _exit(0); /* the controller is gone, or wants this sandbox gone */
  if (message[0] == 'K' && size == 5) {
    memcpy(&id, message + 1, 4);
    if (id > MAX_SPAWNED || !commands[id].alive) return;
    if (!num_spawned) kill_all(SIGKILL);
    else clear(id);
    if (!id) kill_snippet = outside;
  } else if (message[0] == 'Z') {
    owed_pause = 1;
    if (!outside) pause_all(); /* else it might stop before it can say that it is in */
  } else if (message[0] == 'W') {
    paused = owed_pause = 0;
    kill_all(SIGCONT);
    answer('w');
  } else if (message[0] == 'Q') {
    tell_stats();
  } else if (message[0] == 'L' && size == 5) {
    listen_for_controller();
  } else if (message[0] == 'X' && !parse_program(size, &program) && !commands[program.id].alive &&
             num_fds == 3 - !!(program.flags & NO_INPUT)) {
    int given = 0;
    program.fds[0] = program.flags & NO_INPUT ? null : fds[given++];
    program.fds[1] = fds[given++];
    program.fds[2] = fds[given++];
    kill_snippet = 0;
    int failed = start_program(size, &program), why = errno;
    for (int i = 0; i < num_fds; i++) close(fds[i]);
    errno = why;
    if (failed) die("a process for the program");
    if (program.id) tell_start(program.id);
  } else {
    errno = EINVAL;
    die("a request that makes no sense");
  }
}

/* Serves one sandbox, to its end. */
static void init_loop(void) {
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  signal(SIGCHLD, SIG_DFL);
  sigprocmask(SIG_SETMASK, &child_signal, 0);
  int signals = signalfd(-1, &child_signal, SFD_CLOEXEC | SFD_NONBLOCK);
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  loads = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
  if (signals < 0 || null < 0 || loads < 0) die("the first process's descriptors");
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filters[no_sysv])) die("the system-call filter");
  filtered = 1;
  answer('R'); /* a command would run at once */
  struct signalfd_siginfo ignored;
  uint64_t watch_us = 0; /* when to look at the memory next, however busy it is until then */
  int told = 1;          /* whether the controller knows that the command has started */
  int unreaped = 0;
  for (;;) {
    struct pollfd ready[3] = {{control, POLLIN, 0}, {signals, POLLIN, 0}, {reply, POLLIN, 0}};
    uint64_t now = now_us(), until_us = 0;
    if (paused || !(commands[0].alive || num_spawned)) watch_us = 0;
    else if (!watch_us) watch_us = now + WATCH_US;
    until_us = watch_us;
    if (commands[0].alive && !told && !unborn) until_us = commands[0].began_us + QUICK_US;
    int wait_ms = until_us ? 0 : -1;
    if (until_us > now) wait_ms = (until_us - now + 999) / 1000;
    int num = poll(ready, 3, unreaped ? 0 : wait_ms);
    if (num < 0 && errno != EINTR) _exit(73);
    if (watch_us && now >= watch_us) {
      watch_us = now + WATCH_US;
      if (count_oom_kills() > oom_kills || (config.memory && too_much_memory())) {
        for (int i = 0; i <= MAX_SPAWNED; i++) commands[i].ending.oom = 1;
        kill_all(SIGKILL);
      }
    }
    if (num > 0 && ready[2].revents) hear_nest();
    if (unreaped || (num > 0 && ready[1].revents)) {
      while (read(signals, &ignored, sizeof ignored) > 0) continue;
      unreaped = reap() > 0;
    }
    if (num > 0 && ready[0].revents) {
      int before = commands[0].alive;
      obey(null);
      if (commands[0].alive && !before) told = 0;
    }
    if (untold) {
      untold = 0;
      clear(0);
      if (!num_spawned) {
        renew_tmpfs("/tmp", config.tmp_bytes);
        renew_tmpfs("/dev/shm", 1 << 20);
      }
      tell_end(0);
      told = 1;
    } else if (commands[0].alive && !told && !unborn && now_us() - commands[0].began_us >= QUICK_US) {
      tell_start(0);
      told = 1;
    }
  }
}

/* Becomes pid 1 of a sandbox; `mapped` is a pipe on which one byte says that uids are mapped. */
static void become_init(int socket, int mapped) {
  char byte;
  if (prctl(PR_SET_PDEATHSIG, SIGKILL)) _exit(74);
  pid_one = getpid() == 1;
  if (!pid_one) _exit(74);
  int *kept[] = {&socket, &mapped, &nest, &events, &peak, groups, groups + 1, groups + 2};
  int count = sizeof kept / sizeof *kept;
  for (int i = 0; i < count; i++)
    if (*kept[i] >= 0) {
      if (dup3(*kept[i], 200 + i, O_CLOEXEC) < 0) _exit(74);
      *kept[i] = 200 + i;
    }
  syscall(SYS_close_range, 3, 199, 0);
  syscall(SYS_close_range, 200 + count, ~0U, 0);
  control = socket;
  if (read(mapped, &byte, 1) != 1) _exit(0);
  close(mapped);
  if (!config.single_uid) {
    if (syscall(SYS_setgroups, 0, 0) || syscall(SYS_setresgid, 0, 0, 0) || syscall(SYS_setresuid, 0, 0, 0))
      die("the uid of the first process");
  }
  if (prctl(PR_SET_PDEATHSIG, SIGKILL)) die("PR_SET_PDEATHSIG");
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) die("PR_SET_DUMPABLE");
  if (sethostname("sandbox", 7)) die("the host name");
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=2")) die("/proc");
  if (write_file("/proc/sys/user/max_user_namespaces", "0")) die("no more user namespaces");
  /* Memory that no process holds: within bounds where the kernel lets the namespace's owner set them, else none. */
  no_sysv = write_file("/proc/sys/kernel/shmall", "256") || write_file("/proc/sys/kernel/msgmni", "8") ||
            write_file("/proc/sys/kernel/sem", "250 2000 32 8");
  /* An ordinary user's programs could lower their oom_score_adj, and the host's OOM killer would prefer others. */
  if (mount(0, "/proc", 0, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, 0))
    die("a read-only /proc");
  if (put_tmpfs("/tmp", config.tmp_bytes, "1777")) die("/tmp");
  if (put_tmpfs("/dev/shm", 1 << 20, "1777")) die("/dev/shm");
  for (int cap = 0; cap < 64; cap++)
    if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) && errno == EINVAL) break;
}

/* ------------------------------------------------------------------------------------------------ nest */

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

static void find_arguments(void) {
  char text[2048];
  char *at = stat_fields(getpid(), text, sizeof text);
  for (int field = 3; at && field < 48; field++) at = (at = strchr(at, ' ')) ? at + 1 : 0;
  if (!at) return;
  unsigned long long start = strtoull(at, &at, 10), end = strtoull(at, 0, 10);
  if (!start || end <= start) return;
  argument_area = (char *)(uintptr_t)start;
  argument_bytes = end - start;
}

static void tell_init(int socket, int kind, int status, const struct rusage *use) {
  struct {
    int32_t kind, status;
    struct rusage use;
  } said = {.kind = kind, .status = status};
  if (use) said.use = *use;
  send_message(socket, &said, sizeof said, 0, 0);
}

/* In a child of the nest: enters a sandbox, whose namespaces are in `fds`, and becomes a program there. The
 * network comes first: it belongs to its maker's user namespace, not to the sandbox's. */
static void enter(const int *fds, int num_fds, struct program *program) {
  int failed = 0;
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* until the filter holds, nobody inside may trace it */
  for (int i = 11; i < num_fds && !failed; i++) failed = write(fds[i], "0", 1) != 1;
  for (int i = 1; i < 7 && !failed; i++) failed = syscall(SYS_setns, fds[i], 0);
  if (failed) {
    tell_init(fds[0], 'e', errno, 0);
    _exit(125);
  }
  memcpy(program->fds, fds + 8, sizeof program->fds);
  program->kept = fds[0];
  become_model(program);
  show_arguments(program->argv);
  prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* a program may look at itself, and init now sees it in /proc */
  tell_init(3, 'i', 0, 0);
  close(3);
}

static struct child {
  pid_t pid;
  int reply;
} *children = 0;
static int num_children = 0, room_children = 0;

/* Makes sure that one more child can be kept; returns 0, or -1 with errno. */
static int make_room(void) {
  if (num_children < room_children) return 0;
  int room = room_children ? 2 * room_children : 64;
  struct child *more = realloc(children, room * sizeof *children);
  if (!more) return -1;
  children = more;
  room_children = room;
  return 0;
}

static int find_child(pid_t pid) {
  for (int i = 0; i < num_children; i++)
    if (children[i].pid == pid) return i;
  return -1;
}

/* Tells each init how its snippet ended. */
static void reap_children(void) {
  int status;
  struct rusage use;
  pid_t pid;
  while ((pid = wait4(-1, &status, WNOHANG, &use)) > 0) {
    int at = find_child(pid);
    if (at < 0) continue;
    tell_init(children[at].reply, 'x', status, &use);
    close(children[at].reply);
    children[at] = children[--num_children];
  }
}

static void parse_config(char *kept, ssize_t size, const int *fds, int num_fds);

/* Forks at the request of an init; returns only in a child that is to run a snippet, whose words are `strings`. */
int cell_nest(int requests) {
  int fds[MAX_FDS], num_fds;
  sigset_t child_signal;
  struct signalfd_siginfo ignored;
  struct program program = {0};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  control = requests;
  ssize_t size = receive_message(requests, fds, &num_fds);
  char *kept = size > 0 ? malloc(size + 1) : 0;
  if (!kept) _exit(0);
  memcpy(kept, message, size + 1);
  parse_config(kept, size, fds, num_fds);
  build_filters(0);
  explicit_bzero(kept, size); /* a snippet may read all memory of its parent; numbers are all that it needs */
  explicit_bzero(message, sizeof message);
  find_arguments();
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_signal, 0);
  int signals = signalfd(-1, &child_signal, SFD_CLOEXEC | SFD_NONBLOCK);
  int home = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
  if (signals < 0 || home < 0) _exit(76);
  for (;;) {
    struct pollfd ready[2] = {{requests, POLLIN, 0}, {signals, POLLIN, 0}};
    if (poll(ready, 2, -1) < 0 && errno != EINTR) _exit(76);
    if (ready[1].revents) {
      while (read(signals, &ignored, sizeof ignored) > 0) continue;
      reap_children();
    }
    if (!ready[0].revents) continue;
    size = receive_message(requests, fds, &num_fds);
    if (size <= 0) _exit(0);
    pid_t pid = -1;
    errno = EMFILE; /* what the kernel does not say when a descriptor finds no place */
    if (num_fds >= 11 && !parse_program(size, &program) && !make_room() && !syscall(SYS_setns, fds[7], CLONE_NEWPID)) {
      pid = fork();
      if (pid == 0) {
        close(signals);
        sigprocmask(SIG_UNBLOCK, &child_signal, 0);
        enter(fds, num_fds, &program);
        return 0;
      }
    }
    int why = errno;
    explicit_bzero(message, size); /* the next snippet is no business of this one's */
    if (syscall(SYS_setns, home, CLONE_NEWPID)) _exit(78);
    if (num_fds) tell_init(fds[0], pid > 0 ? 's' : 'e', why, 0);
    if (pid > 0) children[num_children++] = (struct child){pid, fds[0]};
    for (int i = pid > 0; i < num_fds; i++) close(fds[i]);
  }
}

/* --------------------------------------------------------------------------------------------- zygote */

static void parse_config(char *kept, ssize_t size, const int *fds, int num_fds) {
  int given = 0;
  config.library = -1;
  for (char *at = kept; at < kept + size; at += strlen(at) + 1) {
    char *value = strchr(at, '=');
    if (!value) continue;
    *value++ = 0;
    unsigned long long number = strtoull(value, 0, 10);
    int group = config.num_groups - 1;
#define NUMBER(name) else if (!strcmp(at, #name)) config.name = number
    if (!strcmp(at, "bind") && config.num_binds < MAX_BINDS) config.binds[config.num_binds++].path = value;
    else if (!strcmp(at, "at") && config.num_binds) config.binds[config.num_binds - 1].at = value;
    else if (!strcmp(at, "image")) config.image = value;
    else if (!strcmp(at, "link") && config.num_links < MAX_BINDS) config.links[config.num_links++].path = value;
    else if (!strcmp(at, "target") && config.num_links) config.links[config.num_links - 1].target = value;
    else if (!strcmp(at, "interpreter")) config.interpreter = value;
    else if (!strcmp(at, "nest")) config.nest = value;
    else if (!strcmp(at, "library") && given < num_fds) config.library = fds[given++];
    else if (!strcmp(at, "group") && config.num_groups < MAX_GROUPS && given < num_fds)
      config.groups[config.num_groups++].fd = fds[given++];
    else if (!strcmp(at, "file") && group >= 0 && config.groups[group].num_files < MAX_GROUP_FILES)
      config.groups[group].files[config.groups[group].num_files++] = value;
    else if (!strcmp(at, "value") && group >= 0 && config.groups[group].num_files)
      config.groups[group].values[config.groups[group].num_files - 1] = value;
    else if (!strcmp(at, "name") && group >= 0) config.groups[group].name = value;
    else if (!strcmp(at, "events") && group >= 0) config.groups[group].events = value;
    else if (!strcmp(at, "peak") && group >= 0) config.groups[group].peak = value;
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
    NUMBER(single_uid);
    NUMBER(born_inside);
#undef NUMBER
    at = value;
  }
}

static ssize_t read_config(char *copy) {
  int fds[MAX_FDS], num_fds;
  ssize_t size = receive_message(control, fds, &num_fds);
  if (size <= 0) _exit(0);
  char *kept = malloc(size + 1);
  if (!kept) die("memory");
  memcpy(kept, message, size + 1);
  memcpy(copy, message, size + 1);
  parse_config(kept, size, fds, num_fds);
  return size;
}

/* Goes on in a child that is pid 1 of the new pid namespace; this process only waits for it. An ordinary user's
 * nest has to come back from the pid namespaces that it visits, which is allowed only into one of its own. */
static void move_inside(void) {
  int status = 0;
  pid_t pid = fork();
  if (pid < 0) die("a first process");
  if (pid == 0) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) _exit(70);
    return;
  }
  syscall(SYS_close_range, 3, ~0U, 0);
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 70);
}

/* Enters namespaces of its own; afterwards nothing that is mounted here reaches anybody else. */
static void leave_host(void) {
  char text[64];
  unsigned int uid = geteuid(), gid = getegid();
  config.single_uid = !(uid == 0 && config.init_uid && unshare(CLONE_NEWNS) == 0);
  if (config.single_uid) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID)) die("user, mount and pid namespaces");
    if (write_file("/proc/self/setgroups", "deny")) die("/proc/self/setgroups");
    snprintf(text, sizeof text, "0 %u 1", uid);
    if (write_file("/proc/self/uid_map", text)) die("/proc/self/uid_map");
    snprintf(text, sizeof text, "0 %u 1", gid);
    if (write_file("/proc/self/gid_map", text)) die("/proc/self/gid_map");
    move_inside();
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
  int trees[5], proc = -1, image = -1;
  struct stat info;
  umask(022);
  for (int i = 0; i < config.num_binds; i++)
    config.binds[i].tree = take_tree(config.binds[i].path, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV);
  for (int i = 0; i < 5; i++) {
    snprintf(path, sizeof path, "/dev/%s", devices[i]);
    trees[i] = take_tree(path, ATTR_RDONLY | ATTR_NOSUID | ATTR_NOEXEC);
  }
  if (!config.single_uid) proc = take_tree("/proc", 0);
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
  if (proc >= 0) put_tree(proc, path, 1);
  else if (mount("proc", path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0)) die("/proc of its own");
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

/* Makes network namespaces ahead, one for each byte that it is sent. They belong to a user namespace of its
 * own in which nobody is mapped, so that their settings are nobody's. */
static void make_networks(int requests) {
  char byte;
  if (unshare(CLONE_NEWUSER)) _exit(80);
  while (read(requests, &byte, 1) == 1) {
    struct ifreq request = {0};
    char answer[80] = "n";
    int fd = -1, network = -1;
    if (unshare(CLONE_NEWNET) || (fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) < 0) goto done;
    strcpy(request.ifr_name, "lo");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(fd, SIOCSIFFLAGS, &request)) goto done;
    network = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  done:
    if (network < 0) snprintf(answer, sizeof answer, "e%s", strerror(errno));
    if (send_message(requests, answer, strlen(answer), &network, network >= 0)) _exit(0);
    if (fd >= 0) close(fd);
    if (network >= 0) close(network);
  }
  _exit(0);
}

static int networks = -1; /* to the maker of network namespaces */
static pid_t helpers[2];

static void start_networks(void) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) die("a socket");
  pid_t pid = fork();
  if (pid < 0) die("a helper");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup3(ends[1], 100, O_CLOEXEC);
    syscall(SYS_close_range, 3, 99, 0);
    make_networks(100);
  }
  helpers[0] = pid;
  close(ends[1]);
  if (networks >= 0) close(networks);
  networks = ends[0];
  for (int i = 0; i < STOCK; i++)
    if (write(networks, "n", 1) != 1) die("a helper");
}

static void start_nest(ssize_t config_size, const char *text) {
  char number[2][16];
  int ends[2];
  if (!config.nest || !config.interpreter || config.library < 0) return;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) die("a socket");
  pid_t pid = fork();
  if (pid < 0) die("a helper");
  if (pid == 0) {
    char *argv[] = {(char *)config.interpreter, "-I", "-S", "-B", "-c", (char *)config.nest, number[0], number[1], 0};
    char *env[] = {"LC_CTYPE=C.UTF-8", 0};
    if (dup2(ends[1], 100) < 0 || dup2(config.library, 101) < 0) _exit(81);
    syscall(SYS_close_range, 3, 99, 0);
    snprintf(number[0], 16, "%d", 100);
    snprintf(number[1], 16, "%d", 101);
    execve(config.interpreter, argv, env);
    _exit(82);
  }
  helpers[1] = pid;
  close(ends[1]);
  if (nest >= 0) close(nest);
  nest = ends[0];
  if (send_message(nest, text, config_size, 0, 0)) die("the preloaded interpreter");
}

/* A folder in each cgroup hierarchy, made ahead; its descriptors are what a sandbox's first process gets. */
struct place {
  unsigned int number; /* its name */
  int groups[MAX_GROUPS], events, peak, folder;
};

static struct cell {
  pid_t pid; /* 0 when it has ended and its place is not removed yet */
  unsigned int place;
} *cells = 0;
static int num_cells = 0, room_cells = 0;
static struct place stock[STOCK];
static int num_stock = 0;
static unsigned int num_places = 0;

static int write_at(int folder, const char *file, const char *value) {
  int fd = openat(folder, file, O_WRONLY | O_CLOEXEC);
  ssize_t done = fd < 0 ? -1 : write(fd, value, strlen(value));
  int why = errno;
  if (fd >= 0) close(fd);
  errno = why;
  return done < 0 ? -1 : 0;
}

static int remove_place(unsigned int number) {
  char name[16];
  int left = 0;
  snprintf(name, sizeof name, "%u", number);
  for (int i = 0; i < config.num_groups; i++)
    if (unlinkat(config.groups[i].fd, name, AT_REMOVEDIR) && errno == EBUSY) left = 1;
  return left;
}

static void close_place(struct place *place) {
  for (int i = 0; i < MAX_GROUPS; i++)
    if (place->groups[i] >= 0) close(place->groups[i]);
  if (place->events >= 0) close(place->events);
  if (place->peak >= 0) close(place->peak);
  if (place->folder >= 0) close(place->folder);
  *place = (struct place){0, {-1, -1, -1}, -1, -1, -1};
}

static int make_place(struct place *place) {
  char name[16];
  *place = (struct place){++num_places, {-1, -1, -1}, -1, -1, -1};
  snprintf(name, sizeof name, "%u", place->number);
  for (int i = 0; i < config.num_groups; i++) {
    if (mkdirat(config.groups[i].fd, name, 0755) && errno != EEXIST) goto failed;
    int folder = openat(config.groups[i].fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) goto failed;
    int bad = 0;
    for (int file = 0; file < config.groups[i].num_files; file++)
      bad |= write_at(folder, config.groups[i].files[file], config.groups[i].values[file]);
    place->groups[i] = openat(folder, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    if (config.groups[i].events) place->events = openat(folder, config.groups[i].events, O_RDONLY | O_CLOEXEC);
    if (config.groups[i].peak) place->peak = openat(folder, config.groups[i].peak, O_RDWR | O_CLOEXEC);
    int why = errno;
    if (config.born_inside) place->folder = folder;
    else close(folder);
    errno = why;
    if (bad || place->groups[i] < 0) goto failed;
  }
  return 0;
failed:;
  int why = errno;
  remove_place(place->number);
  close_place(place);
  errno = why;
  return -1;
}

static void find_place(struct place *place, int *failed) {
  *place = (struct place){0, {-1, -1, -1}, -1, -1, -1};
  if (!config.num_groups) return;
  if (num_stock) *place = stock[--num_stock];
  else *failed = make_place(place);
}

/* Takes note of children that have ended, and removes their places. Returns how many live, the helpers too. */
static int reap_cells(int flags) {
  pid_t pid;
  while ((pid = waitpid(-1, 0, flags)) > 0) {
    for (int i = 0; i < 2; i++)
      if (helpers[i] == pid) helpers[i] = 0;
    for (int i = 0; i < num_cells; i++)
      if (cells[i].pid == pid) {
        cells[i].pid = 0;
        break;
      }
  }
  int gone = pid < 0;
  for (int i = num_cells - 1; i >= 0; i--)
    if (!cells[i].pid && !(config.num_groups && remove_place(cells[i].place))) cells[i] = cells[--num_cells];
  return gone;
}

/* Ends everything, and with it this process. */
static void leave(void) {
  for (int i = 0; i < num_cells; i++)
    if (cells[i].pid) kill(cells[i].pid, SIGKILL);
  for (int i = 0; i < 2; i++)
    if (helpers[i]) kill(helpers[i], SIGKILL);
  while (num_stock) {
    remove_place(stock[--num_stock].number);
    close_place(&stock[num_stock]);
  }
  reap_cells(0);
  for (int i = 0; i < config.num_groups; i++) {
    int above = openat(config.groups[i].fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (above >= 0 && config.groups[i].name) unlinkat(above, config.groups[i].name, AT_REMOVEDIR);
  }
  _exit(0);
}

/* Takes a network namespace from the stock and goes into it, so that the next child is born there. */
static int take_network(char *why, size_t room) {
  int fds[MAX_FDS], num_fds;
  ssize_t size = receive_message(networks, fds, &num_fds);
  if (write(networks, "n", 1) != 1 || size < 1 || num_fds != 1) {
    snprintf(why, room, "a network namespace: %.200s", size > 1 ? message + 1 : "its maker has ended");
    for (int i = 0; i < num_fds; i++) close(fds[i]);
    return -1;
  }
  int failed = syscall(SYS_setns, fds[0], CLONE_NEWNET);
  if (failed) snprintf(why, room, "a network namespace: %s", strerror(errno));
  close(fds[0]);
  return failed;
}

/* Answers "C" u32 with a sandbox: "c" u32 u32, its first process and its work folder (and the upper folder of
 * that), or "e" u32 and why not. */
static int make_sandbox(int socket) {
  char answer[400], path[64], text[64];
  int made[3], mapped[2] = {-1, -1}, pid_fd = -1, work = -1, upper = -1;
  const char *step = "a network namespace";
  int mounted = 0, failed = 0;
  pid_t pid = -1;
  struct place place = {0, {-1, -1, -1}, -1, -1, -1};
  memcpy(answer, message, 5);
  answer[5] = 0;
  if (take_network(answer + 5, sizeof answer - 5)) goto failed;
  step = "a cgroup";
  find_place(&place, &failed);
  if (failed) goto failed;
  if (make_work(&work, &upper, &step)) goto failed;
  mounted = 1;
  step = "a pipe";
  if (pipe2(mapped, O_CLOEXEC)) goto failed;
  step = "memory";
  if (num_cells == room_cells) {
    int room = room_cells ? 2 * room_cells : 64;
    struct cell *more = realloc(cells, room * sizeof *cells);
    if (!more) goto failed;
    cells = more;
    room_cells = room;
  }
  step = "new namespaces";
  struct clone_args arguments = {
      .flags = (NAMESPACES & ~CLONE_NEWNET) | CLONE_PIDFD, .pidfd = (uintptr_t)&pid_fd, .exit_signal = SIGCHLD};
  if (config.born_inside && place.number) {
    arguments.flags |= CLONE_INTO_CGROUP;
    arguments.cgroup = place.folder;
  }
  pid = syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid == 0) {
    memcpy(groups, place.groups, sizeof groups);
    events = place.events;
    peak = place.peak;
    become_init(socket, mapped[0]);
    return 1;
  }
  if (pid < 0) goto failed;
  cells[num_cells++] = (struct cell){pid, place.number};
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
  step = "a place in a cgroup";
  snprintf(text, sizeof text, "%d", pid);
  for (int i = 0; i < config.num_groups && !config.born_inside; i++)
    if (write(place.groups[i], text, strlen(text)) < 0) goto failed;
  answer[0] = 'c';
  memcpy(answer + 5, &place.number, 4);
  made[0] = pid_fd;
  made[1] = work;
  made[2] = upper;
  if (send_message(control, answer, 9, made, upper < 0 ? 2 : 3)) leave();
  umount2("/work", MNT_DETACH);
  goto done;
failed:
  answer[0] = 'e';
  if (!answer[5] || pid > 0) snprintf(answer + 5, sizeof answer - 5, "%s: %s", step, strerror(errno));
  if (mounted) umount2("/work", MNT_DETACH);
  if (pid > 0) syscall(SYS_pidfd_send_signal, pid_fd, SIGKILL, 0, 0);
  else if (place.number) remove_place(place.number);
  send_message(control, answer, 5 + strlen(answer + 5), 0, 0);
done:
  close_place(&place);
  close(socket);
  if (work >= 0) close(work);
  if (upper >= 0) close(upper);
  if (pid_fd >= 0) close(pid_fd);
  if (mapped[0] >= 0) close(mapped[0]);
  if (mapped[1] >= 0) close(mapped[1]);
  return 0;
}

/* Serves a controller on `socket` until its end. */
static void serve(int socket) {
  static char nest_config[MAX_MESSAGE];
  sigset_t child_signal;
  struct signalfd_siginfo ignored;
  control = fcntl(socket, F_DUPFD_CLOEXEC, 3); /* a low number: some others are fixed */
  if (control < 0) _exit(70);
  close(socket);
  ssize_t config_size = read_config(nest_config);
  dup2(0, 1); /* /dev/null */
  dup2(0, 2);
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
  (void)!write_file("/proc/self/oom_score_adj", "500"); /* rather a sandbox than the trainer */
  struct rlimit descriptors;
  if (!getrlimit(RLIMIT_NOFILE, &descriptors)) {
    descriptors.rlim_cur = descriptors.rlim_max; /* a program has its own limit */
    (void)!setrlimit(RLIMIT_NOFILE, &descriptors);
  }
  leave_host();
  while (!secret)
    if (getrandom(&secret, sizeof secret, 0) != sizeof secret) die("a random number");
  build_filters(secret);
  build_root();
  if (config.image && !try_image()) config.image = 0;
  start_networks();
  if (config.single_uid) config_size += snprintf(nest_config + config_size, 20, "single_uid=1") + 1;
  start_nest(config_size, nest_config);
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  sigprocmask(SIG_SETMASK, &child_signal, 0);
  int signals = signalfd(-1, &child_signal, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) die("signalfd");
  char ready[3] = {'R', config.single_uid ? 'u' : 'r', config.image ? 'o' : 'p'};
  if (send_message(control, ready, 3, 0, 0)) _exit(0);
  int failing = 0; /* whether places cannot be made ahead; the next sandbox tells why */
  for (;;) {
    struct pollfd waits[2] = {{control, POLLIN, 0}, {signals, POLLIN, 0}};
    int fds[MAX_FDS], num_fds, lacking = config.num_groups && num_stock < STOCK && !failing;
    int num = poll(waits, 2, lacking ? 0 : -1);
    if (num < 0 && errno != EINTR) leave();
    if (num <= 0) {
      failing = num == 0 && make_place(&stock[num_stock]);
      num_stock += num == 0 && !failing;
      continue;
    }
    if (waits[1].revents) {
      while (read(signals, &ignored, sizeof ignored) > 0) continue;
      reap_cells(WNOHANG);
    }
    if (!waits[0].revents) continue;
    ssize_t size = receive_message(control, fds, &num_fds);
    if (size <= 0) leave();
    if (message[0] != 'C' || size != 5 || num_fds != 1) _exit(75);
    if (!helpers[0]) start_networks(); /* somebody killed it */
    if (!helpers[1]) start_nest(config_size, nest_config);
    if (make_sandbox(fds[0])) init_loop();
  }
}

/* The words of the snippet that `cell_nest` returned for, NULL at the end; the environment follows. */
char **cell_words(void) { return strings; }

int main(int argc, char **argv) {
  if (argc == 2) serve(atoi(argv[1]));
  return 64;
}
