"""A place where programs written by a model run and can do nothing but compute.

`pool.Sandbox` is what others use. A small fork server (`server`, standard library only) runs in its own process, each
program in a child of it that first locks itself in: `seccomp`, and either `bubblewrap`'s namespaces around the server
(backend ``bwrap``) or `landlock` (backend ``landlock``). `probe` attacks the result before it is used. What is
imported inside the sandbox: `syscalls`, `seccomp`, `landlock`, `privileges`, `codec`, `runner`, `server`.

The limit of all this: the kernel is shared. Code that exploits the kernel itself is not held back.
"""
