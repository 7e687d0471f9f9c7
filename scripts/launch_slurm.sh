#!/usr/bin/env bash
# A Slurm job: one process a GPU, as many nodes as asked for. Submit it from the checkout:
#
#   sbatch --nodes=4 --gpus-per-node=8 --ntasks-per-node=8 --cpus-per-task=12 scripts/launch_slurm.sh CONFIG.yaml [key=value ...]
#
# Slurm sends SIGTERM ten minutes before the time is up (--signal below); Octavo then saves a checkpoint and ends with exit
# code 3, and the job puts itself back into the queue, to go on from there. OCTAVO=PATH names another program.
#
# The token files and checkpoint.dir must be on a file system that all nodes share. Open MPI must have been built with PMIx
# (Debian's and Ubuntu's are); `srun --mpi=list` shows what the cluster's Slurm offers.
#SBATCH --job-name=octavo
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=TERM@600
set -euo pipefail
(($#)) || {
  echo "launch_slurm.sh: no config given; see the head of this file" >&2
  exit 2
}
# Slurm runs a copy of this script, so paths start where sbatch was called.
octavo="${OCTAVO:-${SLURM_SUBMIT_DIR:-.}/build/octavo}"

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
# --kill-on-bad-exit: when one rank dies, the others cannot go on without it.
status=0
srun --mpi=pmix --kill-on-bad-exit=1 "$octavo" train "$@" || status=$?
if ((status == 3)); then
  echo "stopped by a signal after saving a checkpoint: back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
  status=0
fi
exit "$status"
