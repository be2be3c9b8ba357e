/* SPDX-License-Identifier: GPL-2.0 */
/* The kernel's types, for those of its files that are tested in user space. */
#ifndef LINUX_TYPES_H_
#define LINUX_TYPES_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint8_t u8;

#endif
