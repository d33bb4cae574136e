"""The keys that a verl configuration may hold and this system does not use.

A key is refused when ignoring it would change what is scheduled: how long the run is, how GPUs are
split, what a sample is, when weights are synchronised. It is accepted, with a warning, when it
concerns what lies elsewhere: how the model learns, what the prompts are, how an engine is tuned,
where a run is logged. Some keys have values that ask for what happens anyway; those are accepted.

Source: the fully-async and Megatron trainer configurations of verl.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs


@attrs.frozen(kw_only=True)
class KnownKey:
    """What happens to a key that is known and not used.

    Attributes:
        key: The full dotted key; it stands for everything below it that has no entry of its own.
        reason: Why it is not used, or what to write instead.
        is_refused: Whether a configuration with this key is refused.
        harmless: Values that are accepted all the same, because they change nothing.
    """

    key: str
    reason: str
    is_refused: bool
    harmless: tuple[object, ...] = ()

    def refuses(self, value: object) -> bool:
        """Return whether this value of the key is refused."""
        return self.is_refused and not any(_is_same(value, item) for item in self.harmless)


def _is_same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _accept(reason: str, section: str, names: str) -> Iterator[KnownKey]:
    for name in names.split():
        yield KnownKey(key=f"{section}{name}", reason=reason, is_refused=False)


def _refuse(reason: str, key: str, *harmless: object) -> KnownKey:
    return KnownKey(key=key, reason=reason, is_refused=True, harmless=harmless)


_ACTOR = "actor_rollout_ref.actor."
_MEGATRON = "actor_rollout_ref.actor.megatron."
_ENGINE = "actor_rollout_ref.rollout."

_LAYOUT = "the trainer is split by tensors, pipeline stages, experts and data alone"
_LEARNING = "how the model learns is the executor's; set it under executor"
_MODEL = "the model is the executor's; describe it under executor"
_PROMPTS = "what the prompts are is the executor's; set it under executor"
_CRITIC = "whether a critic is trained is the executor's; set it under executor"
_REWARD = "rewards come from the task; set it under executor"
_TUNING = "the engine is tuned by the executor; set it under executor"
_TRAINER_TUNING = "the trainer's engine is tuned by the executor; set it under executor"
_LOGGING = "what is recorded, and where, is chosen on the command line"
_CHECKPOINTS = "checkpoints are not written on a schedule"
_COMPOSITION = "a configuration is one file; write out what it would have pulled in"
_NOT_RAY = "processes are started by the executor; set it under executor"

_ACCEPTED = (
    *_accept(
        _PROMPTS,
        "data.",
        "tokenizer use_shm train_files val_files train_max_samples val_max_samples prompt_key "
        "reward_fn_key val_batch_size tool_config_path return_raw_input_ids return_raw_chat "
        "return_full_prompt shuffle seed dataloader_num_workers image_patch_size "
        "validation_shuffle filter_overlong_prompts filter_overlong_prompts_workers truncation "
        "image_key video_key trust_remote_code custom_cls return_multi_modal_inputs sampler "
        "datagen apply_chat_template_kwargs",
    ),
    *_accept(_MODEL, "actor_rollout_ref.", "model"),
    *_accept(
        _TRAINER_TUNING,
        "actor_rollout_ref.",
        "_target_ hybrid_engine nccl_timeout ref checkpoint_engine",
    ),
    *_accept(
        _LEARNING,
        _ACTOR,
        "optim clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c loss_agg_mode policy_loss "
        "entropy_coeff calculate_entropy grad_clip use_kl_loss kl_loss_coef kl_loss_type "
        "use_rollout_log_probs data_loader_seed shuffle freeze_vision_tower",
    ),
    *_accept(
        _TRAINER_TUNING,
        _ACTOR,
        "_target_ ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu "
        "use_dynamic_bsz use_torch_compile use_fused_kernels use_remove_padding checkpoint "
        "profile profiler load_weight",
    ),
    *_accept(
        "the control plane moves the training state out and in at each switch",
        _MEGATRON,
        "param_offload grad_offload optimizer_offload",
    ),
    *_accept(
        _TRAINER_TUNING,
        _MEGATRON,
        "_target_ sequence_parallel use_distributed_optimizer use_dist_checkpointing "
        "dist_checkpointing_path dist_checkpointing_prefix seed override_ddp_config "
        "override_transformer_config override_mcore_model_config use_mbridge vanilla_mbridge "
        "forward_only dtype use_remove_padding",
    ),
    *_accept(
        _TUNING,
        _ENGINE,
        "_target_ name temperature top_k top_p do_sample ignore_eos dtype enforce_eager "
        "cudagraph_capture_sizes max_num_batched_tokens max_model_len enable_chunked_prefill "
        "enable_prefix_caching load_format layered_summon log_prob_micro_batch_size "
        "log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz "
        "log_prob_max_token_len_per_gpu disable_log_stats multi_stage_wake_up engine_kwargs "
        "val_kwargs multi_turn calculate_log_probs agent update_weights_bucket_megabytes "
        "checkpoint_engine trace skip_dump_dir skip_tokenizer_init profiler prometheus "
        "quantization quantization_config_file use_block_quant_rollout layer_name_map",
    ),
    *_accept(_CRITIC, "", "critic"),
    *_accept(_REWARD, "", "reward reward_model reward_manager custom_reward_function"),
    *_accept(_LEARNING, "", "algorithm"),
    *_accept(
        _LEARNING,
        "async_training.",
        "use_rollout_log_probs compute_prox_log_prob compute_advantage_in_rollout",
    ),
    *_accept(
        "the executor chooses how weights travel; set it under executor",
        "async_training.",
        "checkpoint_engine",
    ),
    *_accept(
        _LOGGING,
        "trainer.",
        "project_name experiment_name logger log_val_generations default_local_dir "
        "default_hdfs_dir rollout_data_dir validation_data_dir",
    ),
    *_accept(
        _CHECKPOINTS,
        "trainer.",
        "max_actor_ckpt_to_keep max_critic_ckpt_to_keep max_ref_ckpt_to_keep "
        "del_local_ckpt_after_load esi_redundant_time",
    ),
    *_accept(
        "the length of a run is rollout.total_rollout_steps prompts", "trainer.", "total_epochs"
    ),
    *_accept(
        "validation runs after every trainer.test_freq weight syncs, never before training",
        "trainer.",
        "val_before_train",
    ),
    *_accept(
        _NOT_RAY,
        "trainer.",
        "balance_batch device use_legacy_worker_impl ray_wait_register_center_timeout",
    ),
    *_accept(_NOT_RAY, "", "ray_init ray_kwargs transfer_queue global_profiler"),
    *_accept(_COMPOSITION, "", "hydra"),
)

_REFUSED = (
    _refuse(
        "samples stream one prompt at a time; a batch is "
        "actor_rollout_ref.actor.ppo_mini_batch_size x async_training.require_batches prompts",
        "data.train_batch_size",
        0,
        None,
    ),
    _refuse("samples stream one prompt at a time", "data.gen_batch_size", 1),
    _refuse("the trainer's layout is Megatron's", f"{_ACTOR}strategy", "megatron"),
    _refuse("the trainer's layout is Megatron's", f"{_ACTOR}fsdp_config"),
    _refuse("the trainer's layout is Megatron's", f"{_ACTOR}ulysses_sequence_parallel_size", 1),
    _refuse("write executor.learning.epochs", f"{_ACTOR}ppo_epochs", 1),
    _refuse(_LAYOUT, f"{_MEGATRON}context_parallel_size", 1),
    _refuse(_LAYOUT, f"{_MEGATRON}virtual_pipeline_model_parallel_size", None),
    _refuse(_LAYOUT, f"{_MEGATRON}expert_tensor_parallel_size", 1, None),
    _refuse("responses are generated asynchronously", f"{_ENGINE}mode", "async"),
    _refuse("write data.max_prompt_length", f"{_ENGINE}prompt_length"),
    _refuse("write data.max_response_length", f"{_ENGINE}response_length"),
    _refuse("a replica is split by tensors alone", f"{_ENGINE}pipeline_model_parallel_size", 1),
    _refuse("a replica is split by tensors alone", f"{_ENGINE}data_parallel_size", 1),
    _refuse("a replica is split by tensors alone", f"{_ENGINE}expert_parallel_size", 1),
    _refuse(
        "a hybrid replica gives its cache back at each switch", f"{_ENGINE}free_cache_engine", True
    ),
    _refuse(
        "an episode of several turns is the executor's; set it under executor",
        f"{_ENGINE}multi_turn.enable",
        False,
    ),
    _refuse("every response of a prompt is waited for", f"{_ENGINE}over_sample_rate", 0),
    _refuse("responses are always generated", f"{_ENGINE}skip_rollout", False),
    _refuse(_CRITIC, "critic.enable", False, None),
    _refuse(
        "no reward model holds GPUs; rewards come from the task",
        "reward_model.enable",
        False,
        None,
    ),
    _refuse(
        "advantages are relative to the group of a prompt's responses, unless "
        "executor.learning.critic is true",
        "algorithm.adv_estimator",
        "grpo",
    ),
    _refuse("a sample is never filtered out", "algorithm.filter_groups.enable", False),
    _refuse("a sample is never filtered out", "filter"),
    _refuse("a sample is never filtered out", "super_sample"),
    _refuse(
        "validation runs on the serving replicas; runtime.validation_lends=true adds the trainer's "
        "GPUs",
        "async_training.use_trainer_do_validate",
        False,
    ),
    _refuse("write trainer.test_freq", "rollout.test_freq"),
    _refuse(
        "write rollout.total_rollout_steps, in prompts", "trainer.total_training_steps", None, -1
    ),
    _refuse("the actor is trained from the first step", "trainer.critic_warmup", 0),
    _refuse(_CHECKPOINTS, "trainer.save_freq", -1, 0, None),
    _refuse(_CHECKPOINTS, "trainer.resume_mode", "disable", "auto"),
    _refuse(_CHECKPOINTS, "trainer.resume_from_path", None),
    _refuse(_COMPOSITION, "defaults"),
)

KNOWN_KEYS: Mapping[str, KnownKey] = {entry.key: entry for entry in (*_ACCEPTED, *_REFUSED)}
