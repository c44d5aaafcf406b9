# shellcheck shell=bash
# Sourced by scripts/recipes/*.sh: the options that every recipe has, the dry run, and the launch.
#
# A recipe sets its defaults, defines `recipe_option`, calls `parse_command_line "$@"`, fills `flags`, calls `launch`.
#   recipe_option OPTION [VALUE...]   sets `taken` to the number of words that it took; 0 if the option is not its own
# The help text is what names a recipe's options: a misspelt one is told from SGLang's flags by it.

python=${PYTHON:-python3}
model=
dry_run=0
gb10=0
taken=0
extra=()       # the caller's own SGLang flags; they come last, and SGLang takes the last of two equal flags
flags=()       # SGLang flags of the recipe
environment=() # NAME=value for SGLang

say() { printf '%s\n' "$*" >&2; }
usage_error() { say "error: $*"; say "See $0 --help"; exit 2; }

help_text() { # the comment at the head of the recipe, and what all recipes have
  sed -n '2,/^[^#]/{/^#/!d;s/^# \{0,1\}//;p;}' "$0"
  cat <<'HELP'

Options of every recipe
  --dry-run    print the exact commands and let `sglang-sm120 plan` resolve them; starts nothing, needs no GPU
  --gb10       the GPUs are GB10 (DGX Spark, SM121, 128 GB of unified memory)
  --help       this text
Whatever else follows MODEL goes to SGLang as it is. PYTHON names the interpreter (python3).
HELP
}

refuse_near_miss() { # WORD: SGLang answers what it does not know with its whole usage
  local option
  for option in $(help_text | sed -n 's/^ \{2,3\}\(--[a-z0-9-]*\).*/\1/p'); do
    [[ ${1//[-_]/} != "${option//-/}" ]] || usage_error "$1 is no option of this recipe; did you mean $option?"
  done
}

parse_command_line() {
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) help_text; exit 0 ;;
      --dry-run) dry_run=1; shift ;;
      --gb10) gb10=1; shift ;;
      --help=* | --dry-run=* | --gb10=*) usage_error "${1%%=*} takes no value" ;;
      --) shift; extra+=("$@"); break ;;
      *)
        taken=0
        if [[ $1 == --*=* ]]; then # an option and its value in one word, as SGLang takes them too
          recipe_option "${1%%=*}" "${1#*=}"
          [ "$taken" -ne 1 ] || usage_error "${1%%=*} takes no value"
          [ "$taken" -eq 0 ] || taken=1
        else
          recipe_option "$@"
        fi
        if [ "$taken" -gt 0 ]; then
          [ "$taken" -le $# ] || usage_error "$1 needs a value"
          shift "$taken"
          continue
        fi
        [[ $1 != --* ]] || refuse_near_miss "${1%%=*}"
        if [ -n "$model" ]; then
          extra+=("$1"); shift
        elif [[ $1 == -* ]]; then
          usage_error "MODEL comes before SGLang's own flags ($1)"
        else
          model=$1; shift
        fi
        ;;
    esac
  done
  [ -n "$model" ] || usage_error "no MODEL: a checkpoint directory"
  command -v "$python" >/dev/null || usage_error "PYTHON is '$python'; expected a Python interpreter"
  "$python" -c 'import sglang_sm120' 2>/dev/null ||
    { say "error: sglang-sm120 is not installed for $python; without it SGLang would start stock kernels"; exit 1; }
  if [ "$gb10" -eq 1 ]; then
    # SGLang up to 0.5.20 takes DeepGEMM to run on SM121 whenever it can be imported. Later ones look for its SM12x
    # functions first; there this changes nothing that is known to work.
    environment+=(SGLANG_ENABLE_JIT_DEEPGEMM=0)
    # The operating system lives in the same memory. SGLang's recipe for two DGX Sparks has this value
    # (sgl-project/sglang#37479).
    flags+=(--mem-fraction-static 0.80)
  fi
}

need_number() { # OPTION VALUE
  [[ ${2-} =~ ^[1-9][0-9]*$ ]] || usage_error "$1 is '${2-}'; expected a positive whole number"
}

is_port() { [[ $1 =~ ^[1-9][0-9]{0,4}$ && $1 -le 65535 ]]; }

quoted() { # the words as a line that a shell reads back
  local line
  line=$(printf '%q ' "$@")
  printf '%s\n' "${line% }"
}

plan() { # SGLANG FLAGS...: what SGLang and the overlay make of them
  local options=()
  [ "$gb10" -eq 0 ] || options=(--arch sm121 --gpu-memory-gib 119) # 128 GB
  env "${environment[@]}" "$python" -m sglang_sm120.cli plan --model "$model" "${options[@]}" -- "$@"
}

set_server() { # `server`: the words that start SGLang on the model
  server=("$python" -m sglang.launch_server --model-path "$model")
  [ ${#environment[@]} -eq 0 ] || server=(env "${environment[@]}" "${server[@]}")
}

launch() { # become the server, or show what would be started
  set_server
  if [ "$dry_run" -eq 1 ]; then
    quoted "${server[@]}" "${flags[@]}" "${extra[@]}"
    plan "${flags[@]}" "${extra[@]}"
    exit
  fi
  exec "${server[@]}" "${flags[@]}" "${extra[@]}"
}
