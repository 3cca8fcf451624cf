import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { pointedAt, programOf, readSnippets } from '../docs/snippets.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { run } from './run.ts';
import { PYTHON, PYTHON_PATH } from './tools.ts';

/** The parts that the documents of the three systems leave to their users: an environment that counts, and an agent. */
const OWN_CODE = `
import json


class Environment:
    count = 0

    def reset(self):
        return json.dumps([self.count])

    def step(self, action):
        self.count += 1
        return json.dumps([self.count]), 1.0, False, False, {}

    def save_state(self):
        return json.dumps({"count": self.count}).encode()

    def load_state(self, data):
        self.count = json.loads(data)["count"]
        print("restored", self.count)


class Agent:
    def act(self, observation=None):
        return '"right"'


def play(task_id):
    for turn in range(3):
        yield json.dumps({"x": turn}), b"a screenshot" * 2_000


env, agent = Environment(), Agent()
`;

describe('docs/coming-from.md', () => {
  let server: TestServer;
  beforeEach(async () => {
    server = await startTestServer({ engine: 'sqlite' });
  });
  afterEach(() => server.stop());

  async function runAfter(system: string): Promise<string[]> {
    const snippet = programOf(readSnippets('docs/coming-from.md'), system, 'python');
    const code = `${OWN_CODE}\n${pointedAt(snippet, `${server.host}:${server.port}`)}`;
    const env = { PYTHONPATH: PYTHON_PATH, PYTHONUTF8: '1' };
    return (await run(PYTHON, ['-'], { stdin: code, env })).trim().split('\n');
  }

  it('its loop of FLE saves checkpoints, resumes and branches as it says', async () => {
    expect(await runAfter('fle')).toEqual([
      'restored 3',
      'resumes behind step 3',
      'restored 1',
      'the branch continues at step 2',
    ]);
  });

  it('its loop of CUA records a training step with its rollouts as it says', async () => {
    expect(await runAfter('cua')).toEqual([
      '100.0',
      '[(0, 3, True), (1, 3, True)]',
      "['STATUS_COMPLETED', 'STATUS_RUNNING', 'STATUS_PENDING']",
    ]);
  });

  it('its loop of SSDB branches at step 200 and compares as it says', async () => {
    expect(await runAfter('ssdb')).toEqual(['201', '/lr 0.001 0.01']);
  });
});
