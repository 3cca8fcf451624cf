import { HARMLESS, HOSTILE, type Target } from './acts.ts';
import { CpuCap } from './cpu_cap.ts';

export interface NeighbourSettings {
  readonly kind: 'harmless' | 'hostile';
  readonly target: Target;
  /** Of one processor. */
  readonly cpuShare: number;
}

/** How often each act was done. */
export type Done = Readonly<Record<string, number>>;

/** How many of each act run at once. */
const WIDTH = 4;

/** Does all acts of a neighbour at once, again and again, until the process ends. Returns what is counted meanwhile. */
export function runActs({ kind, target, cpuShare }: NeighbourSettings): Done {
  const acts = kind === 'hostile' ? HOSTILE : HARMLESS;
  const cap = new CpuCap(cpuShare);
  const done: Record<string, number> = {};
  for (const [name, act] of Object.entries(acts)) {
    done[name] = 0;
    const repeat = async () => {
      for (;;) {
        await cap.turn();
        try {
          for await (const _ of act(target)) {
            done[name]! += 1;
            await cap.turn();
          }
        } catch {
          // The server has closed the connection, or accepts none.
        }
      }
    };
    // One holds all connections.
    for (let i = 0; i < (name === 'connections' ? 1 : WIDTH); i += 1) void repeat();
  }
  return done;
}
