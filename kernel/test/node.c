// SPDX-License-Identifier: GPL-2.0
/*
 * A node without hardware, for tests of what the patches do with queues: who
 * owns them, when they are resumed, what the scheduler makes of them.
 *
 * Everything that runs is amdkfd's own code: processes, the ioctls, the DQM lock
 * and its lists, the work items. Made up are the node, its queue manager and the
 * queues, which nobody ever executes; a runlist update finds nothing to unmap and
 * nothing to map. Whether a queue is off is what its flags say.
 *
 * Whoever writes into debugfs (kfd_node) controls it:
 *	queue READ WRITE	a queue of the writer, with its indices there
 *	destroy ID		no longer
 *	mes 1, mes 0		the firmware is MES, or HWS as in the beginning
 *	reset 1, reset 0	the device is being reset, or no longer
 *	gone			the device is lost
 *	fault, leak		something that a kernel which looks at itself must
 *				find: a block is read behind its end, or lost
 * Whoever reads it learns how often MES was told to add and to remove a queue, and
 * whether a runlist update is still to be made that failed.
 */

#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include "amdgpu.h"
#include "amdgpu_reset.h"
#include "kfd_device_queue_manager.h"
#include "kfd_preempt.h"
#include "kfd_priv.h"
#include "kfd_topology.h"

#define NODE_ID	0xa001

int node_init(void);
void node_exit(void);

static struct {
	struct amdgpu_device *adev;
	struct drm_minor render;
	struct amdgpu_reset_domain reset;
	struct kfd2kgd_calls calls;
	struct kfd_dev kfd;
	struct kfd_node node;
	struct device_queue_manager dqm;
	struct amdgpu_mes_funcs mes;
	u32 added;
	u32 removed;
	struct amdgpu_fpriv *private;
	struct drm_file file;
	struct kfd_topology_device *top;
	struct dentry *control;
	bool is_gone;
	bool in_reset;
	struct work_struct reset_work;
	struct completion reset_begun;
	struct completion reset_over;
	char lost;
} fake;

/* A process ends: its queues go with it. */
static int node_terminate(struct device_queue_manager *dqm,
			  struct qcm_process_device *qpd)
{
	struct device_process_node *cur, *next_cur;
	struct queue *q, *next_q;

	dqm_lock(dqm);
	list_for_each_entry_safe(q, next_q, &qpd->queues_list, list) {
		if (q->properties.is_active) {
			dqm->active_queue_count--;
			dqm->active_cp_queue_count--;
		}
		list_del(&q->list);
		uninit_queue(q);
	}
	qpd_to_pdd(qpd)->drm_priv = NULL;
	list_for_each_entry_safe(cur, next_cur, &dqm->queues, list) {
		if (cur->qpd == qpd) {
			list_del(&cur->list);
			kfree(cur);
		}
	}
	dqm_unlock(dqm);
	return 0;
}

static struct queue *node_find_queue(struct qcm_process_device *qpd, u32 id)
{
	struct queue *q;

	list_for_each_entry(q, &qpd->queues_list, list)
		if (q->properties.queue_id == id)
			return q;
	return NULL;
}

static bool node_is_listed(struct qcm_process_device *qpd)
{
	struct device_process_node *cur;

	list_for_each_entry(cur, &fake.dqm.queues, list)
		if (cur->qpd == qpd)
			return true;
	return false;
}

static int node_destroy_queue(struct kfd_process *p, u32 id)
{
	struct kfd_process_device *pdd = kfd_get_process_device_data(&fake.node, p);
	struct queue *q;

	if (!pdd)
		return -ENODEV;
	dqm_lock(&fake.dqm);
	q = node_find_queue(&pdd->qpd, id);
	if (q && q->properties.is_active) {
		fake.dqm.active_queue_count--;
		fake.dqm.active_cp_queue_count--;
	}
	if (q)
		list_del(&q->list);
	dqm_unlock(&fake.dqm);
	if (!q)
		return -ENOENT;
	uninit_queue(q);
	return 0;
}

static int node_mes_add(struct amdgpu_mes *mes, struct mes_add_queue_input *input)
{
	fake.added++;
	return 0;
}

static int node_mes_remove(struct amdgpu_mes *mes,
			   struct mes_remove_queue_input *input)
{
	fake.removed++;
	return 0;
}

static int node_add_queue(struct kfd_process *p, u64 read, u64 write)
{
	struct kfd_process_device *pdd = kfd_get_process_device_data(&fake.node, p);
	struct queue_properties properties = {};
	struct device_process_node *cur;
	struct queue *q;
	u32 id = 0;

	if (!pdd)
		return -ENODEV;
	cur = kzalloc(sizeof(*cur), GFP_KERNEL);
	if (!cur || init_queue(&q, &properties)) {
		kfree(cur);
		return -ENOMEM;
	}
	q->process = p;
	q->device = &fake.node;
	q->properties.type = KFD_QUEUE_TYPE_COMPUTE;
	q->properties.format = KFD_QUEUE_FORMAT_AQL;
	q->properties.queue_address = 0x1000;
	q->properties.queue_size = 4096;
	q->properties.queue_percent = 100;
	q->properties.read_ptr = u64_to_user_ptr(read);
	q->properties.write_ptr = u64_to_user_ptr(write);
	q->properties.is_active = true;

	dqm_lock(&fake.dqm);
	if (!node_is_listed(&pdd->qpd)) {
		cur->qpd = &pdd->qpd;
		list_add(&cur->list, &fake.dqm.queues);
		cur = NULL;
	}
	/* The TLB that is flushed is nobody's. */
	pdd->drm_priv = &fake.file;
	/* The lowest number that is free, as KFD does it. */
	while (node_find_queue(&pdd->qpd, id))
		id++;
	q->properties.queue_id = id;
	list_add_tail(&q->list, &pdd->qpd.queues_list);
	fake.dqm.active_queue_count++;
	fake.dqm.active_cp_queue_count++;
	dqm_unlock(&fake.dqm);
	kfree(cur);
	return 0;
}

static void node_lose(void)
{
	if (fake.is_gone)
		return;
	fake.is_gone = true;
	kfd_preempt_fini_node(&fake.dqm);
}

/* A lock must not be held by somebody who is back in user space. */
static void node_hold_reset(struct work_struct *work)
{
	down_write(&fake.reset.sem);
	complete(&fake.reset_begun);
	wait_for_completion(&fake.reset_over);
	up_write(&fake.reset.sem);
}

static void node_set_reset(bool on)
{
	if (on == fake.in_reset)
		return;
	fake.in_reset = on;
	if (on) {
		queue_work(system_unbound_wq, &fake.reset_work);
		wait_for_completion(&fake.reset_begun);
	} else {
		complete(&fake.reset_over);
		flush_work(&fake.reset_work);
	}
}

/* On purpose. */
static void node_fault(void)
{
	char *block = kmalloc(13, GFP_KERNEL);

	OPTIMIZER_HIDE_VAR(block);
	if (block)
		WRITE_ONCE(fake.lost, READ_ONCE(block[13]));
	kfree(block);
}

static void node_leak(void)
{
	char *block = kmalloc(1234, GFP_KERNEL);

	OPTIMIZER_HIDE_VAR(block);
	WRITE_ONCE(fake.lost, !block);
}

static ssize_t node_write(struct file *file, const char __user *text,
			  size_t size, loff_t *place)
{
	struct kfd_process *p;
	char line[64] = "";
	u64 read, write;
	int r = -EINVAL;
	u32 on;

	if (size >= sizeof(line) || copy_from_user(line, text, size))
		return -EFAULT;
	p = kfd_get_process(current);
	if (sscanf(line, "queue %llx %llx", &read, &write) == 2) {
		if (IS_ERR_OR_NULL(p))
			return -ESRCH;
		r = node_add_queue(p, read, write);
	} else if (sscanf(line, "destroy %u", &on) == 1) {
		if (IS_ERR_OR_NULL(p))
			return -ESRCH;
		r = node_destroy_queue(p, on);
	} else if (sscanf(line, "mes %u", &on) == 1) {
		dqm_lock(&fake.dqm);
		fake.kfd.shared_resources.enable_mes = on;
		dqm_unlock(&fake.dqm);
		r = 0;
	} else if (sscanf(line, "reset %u", &on) == 1) {
		node_set_reset(on);
		r = 0;
	} else if (!strncmp(line, "fault", 5)) {
		node_fault();
		r = 0;
	} else if (!strncmp(line, "leak", 4)) {
		node_leak();
		r = 0;
	} else if (!strncmp(line, "gone", 4)) {
		node_lose();
		r = 0;
	}
	return r ? r : size;
}

static ssize_t node_read(struct file *file, char __user *to, size_t size,
			 loff_t *place)
{
	char text[64];
	int length;

	dqm_lock(&fake.dqm);
	length = scnprintf(text, sizeof(text), "added %u removed %u owes %u\n",
			   fake.added, fake.removed,
			   !!fake.dqm.preempt_update_at);
	dqm_unlock(&fake.dqm);
	return simple_read_from_buffer(to, size, place, text, length);
}

static const struct file_operations node_fops = {
	.owner = THIS_MODULE,
	.read = node_read,
	.write = node_write,
};

/* The topology has a CPU; it is a GPU, too, from now on. */
int node_init(void)
{
	fake.top = kfd_topology_device_by_proximity_domain(0);
	fake.adev = kvzalloc(sizeof(*fake.adev), GFP_KERNEL);
	fake.private = kvzalloc(sizeof(*fake.private), GFP_KERNEL);
	if (!fake.top || !fake.adev || !fake.private)
		goto nothing;
	fake.file.driver_priv = fake.private;

	init_rwsem(&fake.reset.sem);
	INIT_WORK(&fake.reset_work, node_hold_reset);
	init_completion(&fake.reset_begun);
	init_completion(&fake.reset_over);
	fake.reset.wq = alloc_ordered_workqueue("kfd_node_reset", 0);
	if (!fake.reset.wq)
		goto nothing;
	fake.render.index = 128;
	fake.adev->ddev.render = &fake.render;
	fake.adev->reset_domain = &fake.reset;
	fake.adev->ip_versions[GC_HWIP][0] = IP_VERSION(9, 0, 1);
	fake.adev->asic_type = CHIP_VEGA10;
	fake.mes.add_hw_queue = node_mes_add;
	fake.mes.remove_hw_queue = node_mes_remove;
	fake.adev->mes.funcs = &fake.mes;
	mutex_init(&fake.adev->mes.mutex_hidden);

	fake.kfd.adev = fake.adev;
	fake.kfd.num_nodes = 1;
	fake.kfd.nodes[0] = &fake.node;
	fake.node.id = NODE_ID;
	fake.node.adev = fake.adev;
	fake.node.kfd = &fake.kfd;
	fake.node.kfd2kgd = &fake.calls;
	fake.node.dqm = &fake.dqm;

	fake.dqm.dev = &fake.node;
	fake.dqm.sched_policy = KFD_SCHED_POLICY_HWS;
	fake.dqm.sched_running = true;
	fake.dqm.ops.process_termination = node_terminate;
	mutex_init(&fake.dqm.lock_hidden);
	INIT_LIST_HEAD(&fake.dqm.queues);
	init_waitqueue_head(&fake.dqm.destroy_wait);
	kfd_preempt_init_node(&fake.dqm);

	fake.top->gpu_id = NODE_ID;
	fake.top->gpu = &fake.node;
	fake.control = debugfs_create_file("kfd_node", 0600, NULL, NULL, &node_fops);
	return 0;

nothing:
	kvfree(fake.private);
	kvfree(fake.adev);
	return -ENOMEM;
}

void node_exit(void)
{
	debugfs_remove(fake.control);
	fake.top->gpu = NULL;
	fake.top->gpu_id = 0;
	node_lose();
	node_set_reset(false);
	destroy_workqueue(fake.reset.wq);
	kvfree(fake.private);
	kvfree(fake.adev);
}
