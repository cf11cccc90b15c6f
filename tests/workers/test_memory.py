import subprocess
import sys

# In a process of its own: the setting belongs to the process and cannot be taken back.
SCRIPT = """
import resource
import numpy as np
from workers.memory import keep_freed_memory

def faults_of_a_second_array():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults_of_a_second_array()
print(keep_freed_memory(), first, faults_of_a_second_array())
"""


def test_memory_freed_once_is_used_again_without_a_page_fault() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    kept, before, after = done.stdout.split()
    if kept == "True":  # 80 MB are 19,531 pages of 4 KiB; with huge pages, fewer
        assert int(after) <= int(before) // 10
        assert int(before) > 30
    else:
        assert int(after) >= int(before) // 2
