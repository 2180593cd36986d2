// SPDX-License-Identifier: GPL-2.0-only
// Linux 6.1's udmabuf as a module, which its configuration has as a part of the kernel or not at all. Two things that it
// asks are not told to modules and are read where they are kept; and drivers that write to a buffer by their own processor,
// as vivid does, may map it, as later Linux has it (vmap_udmabuf).
#include <linux/dma-buf.h>
#include <linux/hugetlb.h>
#include <linux/iosys-map.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <linux/module.h>
#include <linux/shmem_fs.h>
#include <linux/vmalloc.h>

static bool is_of_huge_pages(struct file *file)
{
	return file_inode(file)->i_sb->s_magic == HUGETLBFS_MAGIC;
}

static int seals_of(struct file *file)
{
	struct inode *inode = file_inode(file);

	return is_of_huge_pages(file) ? HUGETLBFS_I(inode)->seals : SHMEM_I(inode)->seals;
}

static int map_pages(struct dma_buf *buf, struct iosys_map *map);
static void unmap_pages(struct dma_buf *buf, struct iosys_map *map);

#define is_file_hugepages is_of_huge_pages
#define memfd_fcntl(file, command, argument) seals_of(file)
#define cache_sgt_mapping vmap = map_pages, .vunmap = unmap_pages, .cache_sgt_mapping
#include "udmabuf.c"

static int map_pages(struct dma_buf *buf, struct iosys_map *map)
{
	struct udmabuf *ubuf = buf->priv;
	void *address = vm_map_ram(ubuf->pages, ubuf->pagecount, -1);

	if (!address)
		return -ENOMEM;
	iosys_map_set_vaddr(map, address);
	return 0;
}

static void unmap_pages(struct dma_buf *buf, struct iosys_map *map)
{
	struct udmabuf *ubuf = buf->priv;

	vm_unmap_ram(map->vaddr, ubuf->pagecount);
}

MODULE_IMPORT_NS(DMA_BUF);
