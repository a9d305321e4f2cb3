"""The seeded bugs: one line of the package each, and the law that must catch it."""

from dataclasses import dataclass

TWINS = "tests/ops/test_twins.py::test_the_interpreted_twin_gives_what_the_reference_gives"


@dataclass(frozen=True)
class Bug:
    """``old`` in ``file`` becomes ``new``; ``law``, in these ``cases``, must fail."""

    name: str
    file: str
    old: str
    new: str
    law: str
    cases: str = ""


BUGS = (
    Bug(
        "the stride forgets its phase",
        "index/localize.py",
        "ids[(shard.rank - start) % shard.dcp_size :: shard.dcp_size]",
        "ids[shard.rank :: shard.dcp_size]",
        "tests/index/test_laws_localize.py::"
        "test_stride_equals_mask_for_any_run_from_any_start_on_shuffled_pages",
    ),
    Bug(
        "a run that disagrees with its positions is taken for aligned",
        "index/localize.py",
        "ored == want == anded",
        "ored == want",
        "tests/index/test_laws_localize.py::"
        "test_the_check_is_its_definition_on_long_runs_with_an_id_damaged_anywhere",
    ),
    Bug(
        "lengths ignore the interleave",
        "index/layout.py",
        "end % self.turn - self.rank * self.interleave",
        "end % self.turn - self.rank",
        "tests/index/test_laws_lengths.py::test_each_rank_holds_the_positions_that_are_its_own",
    ),
    Bug(
        "the hole is divided before it is tested",
        "index/layout.py",
        "(ids >= 0) & ",
        "",
        "tests/index/test_laws_fixed.py::test_an_owned_id_becomes_its_row_and_all_else_a_hole",
    ),
    Bug(
        "touching ranges are not merged",
        "index/pages.py",
        "begin == merged[-1][1]:",
        "begin == -1:",
        "tests/memory/test_allocator.py::test_touching_ranges_free_each_page_once",
    ),
    Bug(
        "a page is freed twice",
        "memory/allocator.py",
        "if page in self._free:",
        "if not page:",
        "tests/memory/test_allocator.py::test_a_page_is_freed_once",
    ),
    Bug(
        "every rank writes row v // c of every slot",
        "memory/pool.py",
        "own = self.shard.owner(ids) == self.shard.rank",
        "own = ids >= 0",
        "tests/memory/test_mla_pool.py::"
        "test_all_ranks_together_hold_each_token_once_and_nothing_else",
    ),
    Bug(
        "the page is looked up before the owner is decided",
        "memory/unified.py",
        "virtual = localize(slots, self.layout, self.rank)",
        "w = self.layout.widened_page_size\n"
        "        moved = self.table.v2p[slots.ids // w] * w + slots.ids % w\n"
        "        virtual = localize(WidenedSlots(moved + 1, slots.start), self.layout, self.rank)",
        "tests/memory/test_unified.py::test_shard_on_the_virtual_id_then_look_the_page_up",
    ),
    Bug(
        "the checksum is not looked at",
        "memory/backup.py",
        "if not torch.equal(sums, want):",
        "if len(sums) != len(want):",
        "tests/memory/test_backup_refusals.py::test_a_host_copy_that_changed_is_not_restored",
    ),
    Bug(
        "rows are written over while their backup is in flight",
        "memory/pool.py",
        "self.transfer.before_write()",
        "return",
        "tests/memory/test_transfer.py::test_every_kind_of_write_comes_after_the_backups_in_flight",
    ),
    Bug(
        "a half of staging is filled again before it was copied out",
        "memory/transfer.py",
        "first.wait_event(ends[-halves])",
        "pass",
        "tests/memory/test_transfer.py::"
        "test_a_stream_that_does_not_wait_for_staging_spoils_copies_in_some_orders",
    ),
    Bug(
        "rows that are shuffled inside a page are copied as the page",
        "ops/rows.py",
        "aligned and torch.equal(lines, lines[:, :1] + inside)",
        "aligned",
        "tests/memory/test_rows.py::test_gather_and_scatter_are_advanced_indexing",
    ),
    Bug(
        "state slots are divided among the ranks",
        "memory/pool.py",
        "states.load_cpu_copy(state, state_slot)",
        "states.load_cpu_copy(state, max(1, state_slot // pools[0].layout.dcp_size))",
        "tests/memory/test_state_pool.py::test_rows_and_state_come_back_together_on_every_rank",
    ),
    Bug(
        "a pool serves any rank",
        "memory/pool.py",
        "if rows.rank != self.rank or rows.layout != self.layout:",
        "if rows.layout != self.layout:",
        "tests/memory/test_pool_refusals.py::test_a_read_of_another_ranks_rows_is_refused",
    ),
    Bug(
        "the request that has generated most is retracted",
        "engine/policy.py",
        "return (generated, -prompt_tokens, -joined)",
        "return (-generated, -prompt_tokens, -joined)",
        "tests/engine/test_policy.py::test_victims_go_by_generated_then_prompt_then_joining",
    ),
    Bug(
        "the newest token is taken for cached",
        "engine/counting.py",
        "return self.prompt + self.generated - 1",
        "return self.prompt + self.generated",
        "tests/engine/test_node.py::test_stepping_on_real_pools_gives_the_result_of_both_twins",
    ),
    Bug(
        "restored tokens stay on the host's books",
        "engine/counting.py",
        "self.host_tokens -= request.kv",
        "self.host_tokens -= 0",
        "tests/engine/test_counting.py::test_jumping_gives_the_result_of_stepping",
    ),
    Bug(
        "an empty shard reported as +inf takes all the weight",
        "attn/partial.py",
        "given.lse.isnan() | (given.lse == math.inf)",
        "given.lse.isnan()",
        "tests/attn/test_merge_laws.py::"
        "test_the_door_for_backends_that_say_nan_for_empty_makes_empty_shards",
    ),
    Bug(
        "padding of a ragged batch is hidden and not selected away",
        "engine/model/attention.py",
        "if self.select_padding and shard.padding is not None",
        "if not self.select_padding and shard.padding is not None",
        "tests/engine/model/test_padding.py::"
        "test_a_nan_in_the_padding_page_reaches_no_request_of_a_ragged_batch",
    ),
    Bug(
        "fp8 codes are read without their scale",
        "memory/codec.py",
        " * self.scales(rows)[:, None]",
        "",
        "tests/memory/test_codec.py::test_each_element_comes_back_within_half_a_step_of_its_code",
    ),
    Bug(
        "a restored request is thought to go on one token early",
        "lab/drift/tables.py",
        "event.tokens + 1 - length",
        "event.tokens - length",
        "tests/lab/drift/test_tables.py::"
        "test_the_first_token_after_a_restore_is_the_one_whose_position_was_not_cached",
    ),
    Bug(
        "a restore with other bits is counted as the same",
        "lab/drift/faults.py",
        "self.different += 1",
        "self.same += 1",
        "tests/lab/drift/test_runs.py::"
        "test_a_stale_state_hurts_only_those_whose_slot_was_used_in_between",
    ),
    Bug(
        "the elements of a run start a turn too early",
        "index/layout.py",
        "first = self.slot(skipped) - phase",
        "first = self.slot(skipped) - self.turn",
        "tests/ops/test_localize.py::"
        "test_the_elements_are_those_whose_position_the_rank_owns_and_the_lengths_count_them",
    ),
    Bug(
        "the kernel of a run forgets the phase",
        "ops/kernels/localize.py",
        "g % I + rank.to(tl.int64) * I - phase",
        "g % I + rank.to(tl.int64) * I",
        TWINS,
        "localize_run",
    ),
    Bug(
        "the kernel of a top-k list stores slots for rows",
        "ops/kernels/localize.py",
        "tl.where(own, row_of(ids, C, I), -1)",
        "tl.where(own, ids, -1)",
        TWINS,
        "remap_topk",
    ),
    Bug(
        "a tile runs into the next block",
        "ops/kernels/rows.py",
        "stop = tl.minimum(head + TILE, (block + 1) * block_rows)",
        "stop = head + TILE",
        TWINS,
        "gather_rows",
    ),
    Bug(
        "the offset of a layer is kept in 31 bits",
        "ops/kernels/rows.py",
        "buffer_ptr + layer * layer_rows * WORDS",
        "buffer_ptr + layer * layer_rows * WORDS % 2147483648",
        "tests/ops/test_wide_offsets.py::"
        "test_rows_beyond_2_to_the_31_elements_are_copied_and_written",
    ),
    Bug(
        "rows that do not follow each other are copied as if they did",
        "ops/kernels/rows.py",
        "((ids != first + lane) & (head + lane < stop))",
        "((ids < first) & (head + lane < stop))",
        TWINS,
        "gather_rows or scatter_rows",
    ),
    Bug(
        "a kernel stores padding tokens",
        "ops/kernels/owner_write.py",
        "own = (ids >= low)",
        "own = (ids >= 0)",
        TWINS,
        "set_mla_kv_buffer",
    ),
    Bug(
        "a kernel gives an empty shard a weight",
        "ops/kernels/merge.py",
        'live = (lse != float("-inf"))[:, None] & (e < D)[None, :]',
        "live = (lse == lse)[:, None] & (e < D)[None, :]",
        TWINS,
        "merge_stacked",
    ),
)
