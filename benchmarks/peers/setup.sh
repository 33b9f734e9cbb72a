#!/usr/bin/env bash
# Creates environments of the peers: benchmarks/peers/setup.sh [sb3|zoo|rllib|cleanrl|sample_factory ...]
#
# They live outside the repository, in $RLRUN_BENCH_HOME (default ~/.cache/rlrun-bench):
# venvs/<peer>, and CleanRL's checkout in cleanrl/ unless CLEANRL_DIR names one. What is already
# there is left alone, unless other packages are named below by now. PYTHON chooses the interpreter
# (default python3). Where pip would take torch with CUDA, name PyTorch's CPU index in
# PIP_EXTRA_INDEX_URL: gigabytes less, same numbers.
set -euo pipefail

home=${RLRUN_BENCH_HOME:-$HOME/.cache/rlrun-bench}
python=${PYTHON:-python3}
torch=torch==2.13.0
cleanrl_commit=fe8d8a03c41a7ef5b523e2e354bd01c363e786bb

install_peer() { # name, packages...
    local venv=$home/venvs/$1
    shift
    if [[ -e $venv/complete && $(<"$venv/complete") == "$*" ]]; then
        return
    fi
    "$python" -m venv "$venv"
    # torch first and by its exact version: left to a peer's requirements it could be another.
    "$venv/bin/pip" install --quiet "$torch"
    "$venv/bin/pip" install --quiet "$@"
    echo "$*" >"$venv/complete"
}

if [[ $# -eq 0 ]]; then
    set -- sb3 zoo rllib cleanrl sample_factory
fi
for peer; do
    echo "setting up $peer"
    case $peer in
    sb3) install_peer sb3 stable-baselines3==2.9.0 ;;
    zoo)
        # With what other kinds of work need: images, physics, several agents.
        install_peer zoo rl_zoo3==2.9.2 "gymnasium[box2d,mujoco]" ale-py==0.12.1 \
            opencv-python-headless pettingzoo==1.27.0 supersuit==3.11.0
        ;;
    rllib) install_peer rllib "ray[rllib]==2.60.0" ;;
    sample_factory) install_peer sample_factory sample-factory==2.1.1 ;;
    cleanrl)
        # gymnasium 0.29.1 is what CleanRL pins; under 1.x its script never sees an episode end.
        install_peer cleanrl gymnasium==0.29.1 "numpy<2" tyro tensorboard "setuptools<81"
        if [[ -z ${CLEANRL_DIR:-} && ! -e $home/cleanrl ]]; then
            git clone --quiet https://github.com/vwxyzjn/cleanrl "$home/cleanrl"
            git -C "$home/cleanrl" checkout --quiet "$cleanrl_commit"
        fi
        ;;
    *)
        echo "unknown peer: $peer (sb3, zoo, rllib, cleanrl, sample_factory)" >&2
        exit 2
        ;;
    esac
done
