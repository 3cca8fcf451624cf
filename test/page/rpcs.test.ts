/** The RPCs that the page calls, without a browser. */
import type { DescMethod, DescService } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { sources } from '../house/source.ts';

/** The functions of the client that the page uses. */
const OF_CLIENT = ['src/client/reader.ts', 'src/client/trajectories.ts', 'src/client/watch.ts'];

/** Code that the page shows, not runs. */
const SHOWN = 'page/src/operations/code.ts';

const code = [...sources('page/src'), ...sources('src/client').filter(({ path }) => OF_CLIENT.includes(path))]
  .filter(({ path }) => path !== SHOWN)
  .map(({ code }) => code)
  .join('\n');

function isCalled({ typeName, methods }: DescService): string[] {
  const call = ({ localName, name }: DescMethod) =>
    new RegExp(`\\.${localName}\\(|[.]method[.]${localName}\\b|'${localName}'|/${typeName}/${name}'`);
  return methods.filter((method) => call(method).test(code)).map(({ localName }) => localName);
}

describe('the descriptors of the page', () => {
  it.each([
    ['trajectory', TrajectoryService],
    ['run', RunService],
    ['rollout', RolloutService],
    ['server', ServerService],
  ])('have the RPCs of the %s service that it calls, and no others', async (noun, service) => {
    const loaded: Readonly<Record<string, DescService>> = await import(
      `../../gen/page/anabranch/v1/${noun}_service_pb.js`
    );
    const has = loaded[service.name]?.methods.map(({ localName }) => localName).sort();
    expect(has).toEqual(isCalled(service).sort());
  });
});
