//! [`Faults`]: faults injected into the packets that a device sends, repeatable by seed.
//!
//! ```text
//!   engine ──► packet ──► Injector::judge ──► Outbox or ring             (most packets)
//!                                     │   ▲
//!                            delayed  ▼   │ release, when their time has come
//!                                    packets
//! ```
//!
//! Each destination has a [`Cable`] of the simulated fabric. The cable decides the fate of each
//! packet in turn. Its random numbers depend on the seed, the device's name, and how many
//! destinations have already had a packet. The same packets thus have the same fates in each run,
//! independent of the addresses.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use roce::engine::{Gid, Path, Time};
use roce::sim::{Cable, Chance, Fate, Link, Rng};

use super::counters::Counts;

/// Repeatable faults in the packets sent by a device, similar to `tc netem`.
///
/// The text form is a list of elements separated by commas, each at most once.
///
/// | element | effect on a packet |
/// |---|---|
/// | `loss=1%` | it is lost |
/// | `duplicate=1%` | it is sent twice; the copy leaves up to `hold` later |
/// | `reorder=1%` | it leaves up to `hold` later; other packets overtake it |
/// | `corrupt=1%` | one of its bits flips; the receiver drops it |
/// | `delay=1ms` | it leaves this much later |
/// | `jitter=100us` | it leaves up to this much later still; the order is kept |
/// | `rate=10gbit` | it waits until earlier packets to the same address have left at this rate |
/// | `hold=20us` | the maximum time for `duplicate` and `reorder`; the default is 20 µs |
/// | `seed=7` | a different number gives different faults; the default is 0 |
///
/// Percentages have up to four decimal places. The units of time are `ns`, `us`, `ms` and `s`; the
/// units of rate are `bit`, `kbit`, `mbit` and `gbit` per second.
///
/// Faults apply only to sent packets: for both directions of a connection, both devices need them.
/// Processes whose devices have the same name and seed draw the same faults.
///
/// # Examples
/// ```
/// use provider_soft::{Faults, SoftDevice};
///
/// let faults: Faults = "loss=1%,reorder=5%,seed=7".parse()?;
/// let device = SoftDevice::builder().faults(faults).auto()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    loss: Chance,
    duplicate: Chance,
    reorder: Chance,
    corrupt: Chance,
    /// The delay, in nanoseconds; `jitter` and `hold` have the same unit.
    delay: u64,
    jitter: u64,
    hold: u64,
    /// The rate, in bits per second; 0 means unlimited.
    rate: u64,
    seed: u64,
}

/// The error returned for text that is not valid [`Faults`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidFaults {
    /// The first invalid or repeated element.
    pub element: Box<str>,
}

impl InvalidFaults {
    /// The valid elements, for a message to the user.
    pub(crate) const EXPECTED: &str = "elements separated by commas, each once: loss, duplicate, reorder and corrupt with a percentage, \
                                       delay, jitter and hold with a time, rate with bits per second, seed with a number, as in \
                                       loss=1%,corrupt=0.01%,delay=100us,rate=10gbit,seed=7";
}

impl fmt::Display for InvalidFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is invalid among faults, which are {}", self.element, Self::EXPECTED)
    }
}

impl std::error::Error for InvalidFaults {}

impl FromStr for Faults {
    type Err = InvalidFaults;

    fn from_str(text: &str) -> Result<Self, InvalidFaults> {
        let mut faults = Self::NONE;
        let mut seen = Vec::new();
        for element in text.split(',').map(str::trim).filter(|element| !element.is_empty()) {
            let name = faults.set(element).filter(|name| !seen.contains(name));
            seen.push(name.ok_or_else(|| InvalidFaults { element: element.into() })?);
        }
        Ok(faults)
    }
}

impl Faults {
    const NONE: Self = Self {
        loss: Chance::NEVER,
        duplicate: Chance::NEVER,
        reorder: Chance::NEVER,
        corrupt: Chance::NEVER,
        delay: 0,
        jitter: 0,
        hold: 20_000,
        rate: 0,
        seed: 0,
    };

    /// Sets the value of an element and returns the element's name.
    fn set<'a>(&mut self, element: &'a str) -> Option<&'a str> {
        let (name, value) = element.split_once('=')?;
        match name {
            "loss" => self.loss = chance(value)?,
            "duplicate" => self.duplicate = chance(value)?,
            "reorder" => self.reorder = chance(value)?,
            "corrupt" => self.corrupt = chance(value)?,
            "delay" => self.delay = nanoseconds(value)?,
            "jitter" => self.jitter = nanoseconds(value)?,
            "hold" => self.hold = nanoseconds(value)?,
            "rate" => self.rate = bits_per_second(value)?,
            "seed" => self.seed = value.parse().ok()?,
            _ => return None,
        }
        Some(name)
    }

    fn link(&self) -> Link {
        Link {
            latency: self.delay,
            jitter: self.jitter,
            bandwidth: self.rate,
            loss: self.loss,
            duplicate: self.duplicate,
            reorder: self.reorder,
            reorder_delay: self.hold,
            corrupt: self.corrupt,
            undetected: true,
            down: Vec::new(),
        }
    }
}

/// The maximum delay, in nanoseconds: one minute.
const LONGEST: u64 = 60_000_000_000;

fn chance(text: &str) -> Option<Chance> {
    let millionths = decimal(text.strip_suffix('%')?, 4)?;
    (millionths <= 1_000_000).then(|| Chance::per_million(millionths as u32))
}

fn nanoseconds(text: &str) -> Option<u64> {
    let units = [("ns", 0), ("us", 3), ("ms", 6), ("s", 9)];
    let (number, places) =
        units.iter().find_map(|(unit, places)| Some((text.strip_suffix(unit)?, *places)))?;
    decimal(number, places).filter(|nanoseconds| *nanoseconds <= LONGEST)
}

fn bits_per_second(text: &str) -> Option<u64> {
    let units = [("kbit", 3), ("mbit", 6), ("gbit", 9), ("bit", 0)];
    let (number, places) =
        units.iter().find_map(|(unit, places)| Some((text.strip_suffix(unit)?, *places)))?;
    decimal(number, places).filter(|rate| (1..=LARGEST_RATE).contains(rate))
}

/// The maximum rate, in bits per second: 100 Tbit/s.
const LARGEST_RATE: u64 = 100_000_000_000_000;

/// Parses a decimal number with at most `places` decimal places, and returns it multiplied by
/// 10^`places`.
fn decimal(text: &str, places: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || fraction.len() > places {
        return None;
    }
    format!("{whole}{fraction:0<places$}").parse().ok()
}

/// Injects [`Faults`] into the packets of a device.
#[derive(Debug)]
pub(crate) struct Injector {
    faults: Faults,
    /// The seed, combined with the device's name.
    seed: u64,
    cables: BTreeMap<Gid, Cable>,
    /// Packets that leave later, ordered by departure time, and by the order of sending if that is
    /// equal.
    delayed: BTreeMap<(Time, u64), Delayed>,
    /// The number of packets delayed since the device was created.
    count: u64,
    /// The total length of all delayed packets, in bytes.
    bytes: usize,
}

/// A delayed packet.
#[derive(Debug)]
struct Delayed {
    path: Path,
    /// The packet's bytes, from the BTH through the pad.
    packet: Box<[u8]>,
    /// The index of the bit to flip, if any.
    flip: Option<usize>,
}

/// The maximum number of destinations with a cable. Further destinations share the cable of the
/// zero address.
const CABLES: usize = 4096;

/// The maximum number of bytes in delayed packets. Further packets to be delayed are lost.
const CAPACITY: usize = 64 << 20;

impl Injector {
    /// Returns an injector for the device of this name.
    #[cold]
    #[inline(never)]
    pub(crate) fn new(faults: &Faults, device: &str) -> Box<Self> {
        let name = device.bytes().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        Box::new(Self {
            faults: *faults,
            seed: faults.seed ^ name << 32,
            cables: BTreeMap::new(),
            delayed: BTreeMap::new(),
            count: 0,
            bytes: 0,
        })
    }

    /// Decides the fate of a packet. Returns `Some` with the bit to flip, if any, for a packet to
    /// be sent now. Other packets are lost or leave later ([`release`](Self::release)).
    pub(crate) fn judge(
        &mut self,
        now: Time,
        packet: &[u8],
        path: &Path,
        counts: &Counts,
    ) -> Option<Option<usize>> {
        let carried = self.cable(path.remote).carry(now, packet.len());
        if let Some(at) = carried.again {
            counts.injected_duplicates.add(1);
            self.delay(at, packet, path, None, counts);
        }
        match carried.fate {
            Fate::Arrives(at) | Fate::Damaged(at) => {
                if carried.flip.is_some() {
                    counts.injected_corruptions.add(1);
                }
                if at > now {
                    counts.injected_delays.add(1);
                    self.delay(at, packet, path, carried.flip, counts);
                    return None;
                }
                Some(carried.flip)
            }
            _ => {
                counts.injected_losses.add(1);
                None
            }
        }
    }

    fn cable(&mut self, remote: Gid) -> &mut Cable {
        let (seed, number) = (self.seed, self.cables.len() as u64);
        let faults = self.faults;
        // The first look-up is needed only if the table is full.
        let has_own = self.cables.len() < CABLES || self.cables.contains_key(&remote);
        let remote = if has_own { remote } else { [0; 16] };
        self.cables.entry(remote).or_insert_with(|| Cable::new(faults.link(), Rng::split(seed, number)))
    }

    fn delay(&mut self, at: Time, packet: &[u8], path: &Path, flip: Option<usize>, counts: &Counts) {
        if self.bytes + packet.len() > CAPACITY {
            counts.injected_losses.add(1);
            return;
        }
        self.count += 1;
        self.bytes += packet.len();
        self.delayed.insert((at, self.count), Delayed { path: *path, packet: packet.into(), flip });
    }

    /// Calls `send` with the delayed packets whose departure time has come, until `send` returns
    /// false.
    pub(crate) fn release(&mut self, now: Time, mut send: impl FnMut(&[u8], &Path, Option<usize>) -> bool) {
        while let Some(next) = self.delayed.first_entry().filter(|next| next.key().0 <= now) {
            let Delayed { path, packet, flip } = next.get();
            if !send(packet, path, *flip) {
                return;
            }
            self.bytes -= packet.len();
            next.remove();
        }
    }

    /// Returns the departure time of the next delayed packet, if any.
    pub(crate) fn next_departure(&self) -> Option<Time> {
        self.delayed.first_key_value().map(|((at, _), _)| *at)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn faults_are_parsed_with_units_and_decimal_places() {
        let faults: Faults =
            " loss=1%, duplicate=0.5%,reorder=100%,corrupt=0.0001%,delay=1.5ms,jitter=200ns,hold=0.05s,rate=2.5gbit,seed=18446744073709551615"
                .parse()
                .unwrap();
        let expected = Faults {
            loss: Chance::percent(1),
            duplicate: Chance::per_million(5_000),
            reorder: Chance::ALWAYS,
            corrupt: Chance::per_million(1),
            delay: 1_500_000,
            jitter: 200,
            hold: 50_000_000,
            rate: 2_500_000_000,
            seed: u64::MAX,
        };
        assert_eq!((faults, "".parse(), " , ".parse()), (expected, Ok(Faults::NONE), Ok(Faults::NONE)));
    }

    #[test]
    fn an_invalid_element_is_named() {
        for element in [
            "loss",
            "loss=",
            "loss=1",
            "loss=%",
            "loss=101%",
            "loss=1.00001%",
            "loss=-1%",
            "loss=1e1%",
            "loss=99999999999999999999%",
            "lost=1%",
            "delay=1",
            "delay=1m",
            "delay=.5ms",
            "delay=0.5ns",
            "delay=61s",
            "rate=0bit",
            "rate=10g",
            "rate=101000gbit",
            "seed=-1",
            "seed=0x7",
            "=1%",
        ] {
            let error = format!("seed=1,{element},loss=1%").parse::<Faults>().unwrap_err();
            assert_eq!(&*error.element, element);
            assert!(error.to_string().contains("loss=1%,corrupt=0.01%"), "{error}");
        }
        assert_eq!(&*"loss=1%,loss=2%".parse::<Faults>().unwrap_err().element, "loss=2%");
    }

    /// Sends packets with these faults, a microsecond apart. Returns the departure time, in
    /// microseconds, and the number of each packet that left, with a mark for damaged packets.
    fn run(faults: &str, device: &str, remotes: &[Gid], packets: u16) -> (Vec<String>, Counts) {
        let mut injector = Injector::new(&faults.parse().unwrap(), device);
        let counts = Counts::default();
        let mut left = Vec::new();
        let mut time = Time(0);
        let mut number = 0;
        while number < packets || injector.next_departure().is_some() {
            let mut sent = Vec::new();
            let mut send = |packet: &[u8], flip: Option<usize>| {
                let mut packet = packet.to_vec();
                if let Some(bit) = flip {
                    packet[bit / 8] ^= 1 << (bit % 8);
                }
                sent.push(packet);
            };
            injector.release(time, |packet, _, flip| {
                send(packet, flip);
                true
            });
            if number < packets {
                let mut packet = [0; 16];
                packet[8..10].copy_from_slice(&number.to_be_bytes());
                let remote = remotes[usize::from(number) % remotes.len()];
                let path = Path { remote, ..Path::default() };
                if let Some(flip) = injector.judge(time, &packet, &path, &counts) {
                    send(&packet, flip);
                }
                number += 1;
            }
            for packet in sent {
                let bits: u32 = packet[..16].iter().map(|byte| byte.count_ones()).sum();
                let number = u16::from_be_bytes([packet[8], packet[9]]);
                let mark = if bits == number.count_ones() { "" } else { "!" };
                left.push(format!("{}:{number}{mark}", time.0 / 1000));
            }
            time = time + 1000;
        }
        (left, counts)
    }

    const PEER: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 9, 9, 9];

    #[test]
    fn without_faults_every_packet_leaves_at_once() {
        let (left, counts) = run("seed=3", "soft0", &[PEER], 5);
        assert_eq!(left, ["0:0", "1:1", "2:2", "3:3", "4:4"]);
        assert_eq!(counts.read(), Counts::default().read());
    }

    #[test]
    fn a_delay_keeps_the_order_and_a_rate_spaces_packets() {
        assert_eq!(run("delay=2us", "soft0", &[PEER], 3).0, ["2:0", "3:1", "4:2"]);
        // 16 bytes and the surrounding headers are 688 bits.
        assert_eq!(run("rate=344mbit", "soft0", &[PEER], 3).0, ["2:0", "4:1", "6:2"]);
    }

    #[test]
    fn each_fault_occurs_as_often_as_it_should() {
        let (left, counts) = run("loss=20%,seed=1", "soft0", &[PEER], 1000);
        let lost = counts.read().injected_losses;
        assert!((160..=240).contains(&lost), "{lost}");
        assert_eq!(left.len() as u64 + lost, 1000);

        let (left, counts) = run("duplicate=20%,hold=5us,seed=1", "soft0", &[PEER], 1000);
        assert_eq!(left.len() as u64, 1000 + counts.read().injected_duplicates);
        assert!((160..=240).contains(&counts.read().injected_duplicates));

        let (left, counts) = run("corrupt=20%,seed=1", "soft0", &[PEER], 1000);
        let damaged = left.iter().filter(|packet| packet.ends_with('!')).count() as u64;
        assert!((160..=240).contains(&counts.read().injected_corruptions));
        // A bit that flips within the number itself is not marked as damage.
        assert!(damaged > 120 && damaged <= counts.read().injected_corruptions, "{damaged}");

        let (left, counts) = run("reorder=20%,hold=10us,seed=1", "soft0", &[PEER], 1000);
        assert_eq!((left.len(), counts.read().injected_losses), (1000, 0));
        assert!((160..=240).contains(&counts.read().injected_delays));
        let numbers: Vec<u16> =
            left.iter().map(|packet| packet.split_once(':').unwrap().1.parse().unwrap()).collect();
        assert!(numbers.windows(2).filter(|pair| pair[0] > pair[1]).count() > 100);
    }

    #[test]
    fn the_seed_decides_whatever_the_addresses_are() {
        let faults = |seed| format!("loss=10%,duplicate=10%,reorder=10%,corrupt=10%,jitter=3us,seed={seed}");
        let other = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 1, 2, 3];
        let first = run(&faults(7), "soft0", &[PEER, other], 500).0;
        assert_eq!(first, run(&faults(7), "soft0", &[other, PEER], 500).0);
        assert_ne!(first, run(&faults(8), "soft0", &[PEER, other], 500).0);
        assert_ne!(first, run(&faults(7), "soft1", &[PEER, other], 500).0);
    }

    #[test]
    fn delayed_packets_have_a_limit_and_the_rest_is_lost() {
        let mut injector = Injector::new(&"delay=1s".parse().unwrap(), "soft0");
        let counts = Counts::default();
        let path = Path { remote: PEER, ..Path::default() };
        let packets = CAPACITY / 4096;
        for _ in 0..packets + 3 {
            assert_eq!(injector.judge(Time(5), &[0; 4096], &path, &counts), None);
        }
        assert_eq!(counts.read().injected_losses, 3);
        assert_eq!(injector.next_departure(), Some(Time(1_000_000_005)));
        let mut left = 0;
        injector.release(Time(1_000_000_005), |_, _, _| {
            left += 1;
            left < 100
        });
        assert_eq!((left, injector.next_departure()), (100, Some(Time(1_000_000_005))));
        injector.release(Time(1_000_000_005), |_, _, _| {
            left += 1;
            true
        });
        left -= 1;
        assert_eq!((left, injector.bytes), (packets, 0));
    }
}
