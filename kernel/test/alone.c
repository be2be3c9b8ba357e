// SPDX-License-Identifier: GPL-2.0
/*
 * amdkfd as a module without the rest of amdgpu, for tests on machines without a
 * device: it has /dev/kfd and everything behind it, and whatever it would ask
 * amdgpu about a device says that somebody called it, which is a failure. With
 * node=1 there is a node without hardware (node.c).
 */

#include <linux/bug.h>
#include <linux/errno.h>
#include <linux/module.h>

#define FUNCTION(name)						\
	long name(void);					\
	long name(void)						\
	{							\
		WARN(1, #name " was called without a device");	\
		return -ENODEV;					\
	}

/* Settings that are 0 by default, and tables of functions. */
#define VARIABLE(name)	long name[64]

int node_init(void);
void node_exit(void);

int kgd2kfd_init(void);
void kgd2kfd_exit(void);
int amdgpu_pasid_alloc(unsigned int bits);
void amdgpu_pasid_free(u32 pasid);
void amdgpu_bo_free_kernel(void **bo, u64 *gpu_address, void **cpu_address);
u64 amdgpu_bo_gpu_offset(void *bo);
int amdgpu_vm_flush_compute_tlb(void *adev, void *vm, u32 type, u32 xcc_mask);

int max_num_of_queues_per_device = 4096;
int queue_preemption_timeout_ms = 9000;

VARIABLE(aldebaran_kfd2kgd);
VARIABLE(arcturus_kfd2kgd);
VARIABLE(gc_9_4_3_kfd2kgd);
VARIABLE(gfx_v10_3_kfd2kgd);
VARIABLE(gfx_v10_kfd2kgd);
VARIABLE(gfx_v11_kfd2kgd);
VARIABLE(gfx_v12_kfd2kgd);
VARIABLE(gfx_v8_kfd2kgd);
VARIABLE(gfx_v9_kfd2kgd);
VARIABLE(amdgpu_asic_name);
VARIABLE(amdgpu_emu_mode);
VARIABLE(amdgpu_no_queue_eviction_on_vm_fault);
VARIABLE(amdgpu_sdma_phase_quantum);
VARIABLE(amdgpu_use_xgmi_p2p);
VARIABLE(cwsr_enable);
VARIABLE(debug_evictions);
VARIABLE(halt_if_hws_hang);
VARIABLE(hws_gws_support);
VARIABLE(hws_max_conc_proc);
VARIABLE(sched_policy);
VARIABLE(send_sigterm);

FUNCTION(amdgpu_amdkfd_add_gws_to_process)
FUNCTION(amdgpu_amdkfd_alloc_gtt_mem)
FUNCTION(amdgpu_amdkfd_alloc_gws)
FUNCTION(amdgpu_amdkfd_block_mmu_notifications)
FUNCTION(amdgpu_amdkfd_bo_mapped_to_dev)
FUNCTION(amdgpu_amdkfd_criu_resume)
FUNCTION(amdgpu_amdkfd_debug_mem_fence)
FUNCTION(amdgpu_amdkfd_free_gtt_mem)
FUNCTION(amdgpu_amdkfd_free_gws)
FUNCTION(amdgpu_amdkfd_get_available_memory)
FUNCTION(amdgpu_amdkfd_get_dmabuf_info)
FUNCTION(amdgpu_amdkfd_get_fw_version)
FUNCTION(amdgpu_amdkfd_get_gpu_clock_counter)
FUNCTION(amdgpu_amdkfd_get_local_mem_info)
FUNCTION(amdgpu_amdkfd_get_max_engine_clock_in_mhz)
FUNCTION(amdgpu_amdkfd_get_pcie_bandwidth_mbytes)
FUNCTION(amdgpu_amdkfd_get_tile_config)
FUNCTION(amdgpu_amdkfd_get_xgmi_bandwidth_mbytes)
FUNCTION(amdgpu_amdkfd_get_xgmi_hops_count)
FUNCTION(amdgpu_amdkfd_gpu_reset)
FUNCTION(amdgpu_amdkfd_gpuvm_acquire_process_vm)
FUNCTION(amdgpu_amdkfd_gpuvm_alloc_memory_of_gpu)
FUNCTION(amdgpu_amdkfd_gpuvm_destroy_cb)
FUNCTION(amdgpu_amdkfd_gpuvm_dmaunmap_mem)
FUNCTION(amdgpu_amdkfd_gpuvm_export_dmabuf)
FUNCTION(amdgpu_amdkfd_gpuvm_free_memory_of_gpu)
FUNCTION(amdgpu_amdkfd_gpuvm_get_process_page_dir)
FUNCTION(amdgpu_amdkfd_gpuvm_get_vm_fault_info)
FUNCTION(amdgpu_amdkfd_gpuvm_import_dmabuf_fd)
FUNCTION(amdgpu_amdkfd_gpuvm_map_gtt_bo_to_kernel)
FUNCTION(amdgpu_amdkfd_gpuvm_map_memory_to_gpu)
FUNCTION(amdgpu_amdkfd_gpuvm_release_process_vm)
FUNCTION(amdgpu_amdkfd_gpuvm_restore_process_bos)
FUNCTION(amdgpu_amdkfd_gpuvm_set_vm_pasid)
FUNCTION(amdgpu_amdkfd_gpuvm_sync_memory)
FUNCTION(amdgpu_amdkfd_gpuvm_unmap_gtt_bo_from_kernel)
FUNCTION(amdgpu_amdkfd_gpuvm_unmap_memory_from_gpu)
FUNCTION(amdgpu_amdkfd_have_atomics_support)
FUNCTION(amdgpu_amdkfd_is_fed)
FUNCTION(amdgpu_amdkfd_map_gtt_bo_to_gart)
FUNCTION(amdgpu_amdkfd_ras_pasid_poison_consumption_handler)
FUNCTION(amdgpu_amdkfd_ras_poison_consumption_handler)
FUNCTION(amdgpu_amdkfd_remove_gws_from_process)
FUNCTION(amdgpu_amdkfd_send_close_event_drain_irq)
FUNCTION(amdgpu_amdkfd_set_compute_idle)
FUNCTION(amdgpu_amdkfd_submit_ib)
FUNCTION(amdgpu_amdkfd_unmap_hiq)
FUNCTION(amdgpu_amdkfd_xcp_memory_size)
FUNCTION(amdgpu_bo_create_kernel)
FUNCTION(amdgpu_bo_ref)
FUNCTION(amdgpu_bo_unref)
FUNCTION(amdgpu_device_flush_hdp)
FUNCTION(amdgpu_doorbell_index_on_bar)
FUNCTION(amdgpu_dpm_get_thermal_throttling_counter)
FUNCTION(amdgpu_file_to_fpriv)
FUNCTION(amdgpu_gfx_off_ctrl)
FUNCTION(amdgpu_mes_doorbell_process_slice)
FUNCTION(amdgpu_mes_flush_shader_debugger)
FUNCTION(amdgpu_mes_resume)
FUNCTION(amdgpu_mes_set_shader_debugger)
FUNCTION(amdgpu_mes_suspend)
FUNCTION(amdgpu_queue_mask_bit_to_mec_queue)
FUNCTION(amdgpu_queue_mask_bit_to_set_resource_bit)
FUNCTION(amdgpu_ras_acquire_event_id)
FUNCTION(amdgpu_ras_event_log_print)
FUNCTION(amdgpu_ras_mark_ras_event_caller)
FUNCTION(amdgpu_reset_get_desc)
FUNCTION(amdgpu_sriov_xnack_support)
FUNCTION(amdgpu_ttm_tt_get_userptr)
FUNCTION(amdgpu_vm_bo_find)
FUNCTION(amdgpu_vm_bo_lookup_mapping)
FUNCTION(amdgpu_vm_get_task_info_pasid)
FUNCTION(amdgpu_vm_put_task_info)
FUNCTION(amdgpu_xcp_get_inst_details)
FUNCTION(amdgpu_xcp_query_partition_mode)
FUNCTION(kfd_debugfs_kfd_mem_limits)

/* In a kernel of which only the kernel itself was built these are missing, too. */
#ifdef WITHOUT_OTHER_MODULES
FUNCTION(crc16)
FUNCTION(ttm_bo_move_to_lru_tail)
#endif

/* The only thing that is needed without a device: every process gets one. */
int amdgpu_pasid_alloc(unsigned int bits)
{
	static atomic_t last = ATOMIC_INIT(0);

	return atomic_inc_return(&last) & 0x7fff;
}

void amdgpu_pasid_free(u32 pasid)
{
}

/* Every process on a node gives its doorbells back, also if it never had any. */
void amdgpu_bo_free_kernel(void **bo, u64 *gpu_address, void **cpu_address)
{
	WARN(bo && *bo, "a buffer that nobody made is given back");
}

/* A node without hardware has no buffers, but tells MES where they are. */
u64 amdgpu_bo_gpu_offset(void *bo)
{
	return 0;
}

int amdgpu_vm_flush_compute_tlb(void *adev, void *vm, u32 type, u32 xcc_mask)
{
	return 0;
}

static bool node;
module_param(node, bool, 0444);
MODULE_PARM_DESC(node, "have a node without hardware (default: none)");

static int __init alone_init(void)
{
	int r = kgd2kfd_init();

	if (r || !node)
		return r;
	r = node_init();
	if (r)
		kgd2kfd_exit();
	return r;
}

static void __exit alone_exit(void)
{
	if (node)
		node_exit();
	kgd2kfd_exit();
}

module_init(alone_init);
module_exit(alone_exit);

MODULE_IMPORT_NS(DMA_BUF);
MODULE_DESCRIPTION("amdkfd without amdgpu, for tests");
MODULE_LICENSE("GPL");
