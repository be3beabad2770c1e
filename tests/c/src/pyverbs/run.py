"""Runs rdma-core's pyverbs tests and prints a line for the start and the result of each test:

    start ID
    ok ID
    skip ID<tab>WHY
    FAIL ID<tab>WHY

Usage: pyverbs.py SOURCE TARGET DEVICE GID-INDEX [MODULE...]
SOURCE is the directory of Debian's copy of the tests, partly compressed, which is unpacked into TARGET.

All modules are imported once, which takes the longest; each module's tests then run in a child process, which may crash or hang:

    died MODULE<tab>HOW
"""
import gzip
import importlib
import os
import random
import shutil
import signal
import sys
import traceback
import types
import unittest

source, target, device, gid, *modules = sys.argv[1:]

os.makedirs(target)
for name in os.listdir(source):
    path = os.path.join(source, name)
    if name.endswith('.py.gz'):
        with gzip.open(path) as packed, open(os.path.join(target, name[:-3]), 'wb') as unpacked:
            shutil.copyfileobj(packed, unpacked)
    elif name.endswith('.py'):
        shutil.copy(path, target)

sys.path.insert(0, target)
sys.argv[1:] = ['--dev', device, '--gid', gid]
from args_parser import parser
parser.parse_args()
package = types.ModuleType('tests')
package.__path__ = [target]
sys.modules['tests'] = package
# All modules, in the order of their package, because some import each other in circles.
every = sorted(name[:-3] for name in os.listdir(target) if name.startswith('test_') and name.endswith('.py'))
imported = {name: importlib.import_module(f'tests.{name}') for name in every}


def say(kind, test, why=None):
    line = f'{kind} {test.id()}'
    if why is not None:
        line += '\t' + ' '.join(str(why).split())
    print(line, flush=True)


class Result(unittest.TestResult):
    """Prints each result at once, so that none is lost if a test crashes the process."""

    def startTest(self, test):
        super().startTest(test)
        say('start', test)

    def addSuccess(self, test):
        say('ok', test)

    def addSkip(self, test, reason):
        say('skip', test, reason)

    def addError(self, test, error):
        kind, value, trace = error
        print(f'{test.id()}:', ''.join(traceback.format_exception(kind, value, trace)), file=sys.stderr, flush=True)
        say('FAIL', test, f'{kind.__name__}: {value}')

    addFailure = addError

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addError(test, error)

    def addExpectedFailure(self, test, error):
        say('ok', test)

    def addUnexpectedSuccess(self, test):
        say('FAIL', test, 'it was expected to fail')


def run(module):
    # Longer than any test takes. The default action ends the process even while it waits.
    signal.alarm(120)
    # Some tests choose sizes and queue pair numbers at random.
    random.seed(module)
    unittest.defaultTestLoader.loadTestsFromModule(imported[module]).run(Result())
    sys.stdout.flush()
    sys.stderr.flush()


for module in modules or every:
    child = os.fork()
    if child == 0:
        try:
            run(module)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        how = f'killed by {signal.Signals(-status).name}' if status < 0 else f'exit status {status}'
        print(f'died {module}\t{how}', flush=True)
