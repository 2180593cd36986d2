//! The model ADC: traces like those of a 12-bit digitizer, each sample of which anyone can compute again.

use crate::{Description, Device, DeviceError, HeaderValues, MAX_PAYLOAD_BYTES, ModelAdcConfig, OwnFields};
use thalweg_text::ByteSize;
use thalweg_wire::{EventId, GOLDEN_GAMMA, PayloadType, SourceId, Status, mix_bits};

/// Writes the samples that the model ADC of `source` gives for `event`: signed 16-bit little-endian numbers from 193
/// to 3787, within the 0 to 4095 of a 12-bit converter. Where the model has a `period`, `event` is the event number
/// modulo the period. A last odd byte of `samples` is set to zero.
///
/// The samples are noise around a baseline, and one pulse in every 1024 samples. All arithmetic is on unsigned 64-bit
/// integers that wrap. With `GOLDEN_GAMMA` = 0x9e3779b97f4a7c15 and `mix` the output function of SplitMix64 (Steele,
/// Lea and Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014; constants of Vigna's `splitmix64.c`):
///
/// ```text
/// mix(z):   z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9
///           z = (z ^ z >> 27) * 0x94d049bb133111eb
///           z ^ z >> 31
///
/// key     = mix(mix(mix(seed) ^ source) ^ event)
///
/// noise:    h = mix(key + (i / 4 + 1) * GOLDEN_GAMMA) >> 16 * (i % 4)              for sample i
///           noise[i] = 193 + (h & 7) + (h >> 3 & 7)                                mean 200, standard deviation 3.2
///
/// pulse:    p = mix(~key + (i / 1024 + 1) * GOLDEN_GAMMA)                          ~ inverts all bits
///           start  = 64 + (p & 511)                                                within its 1024 samples
///           height = 256 + (p >> 16 & 1023) + (p >> 32 & 511)
///           t = i % 1024 - start                                                   may be negative
///           -8 <= t < 0:    pulse[i] = 2 * (height * (t + 8) >> 3)                 rises in 8 samples
///           0 <= t < 176:   pulse[i] = 2 * ((height >> t / 16) * (32 - t % 16) >> 5)   halves in every 16 samples
///           otherwise:      pulse[i] = 0
///
/// sample[i] = noise[i] + pulse[i]
/// ```
///
/// Four samples of noise are one output of a SplitMix64 generator that starts from `key`. The same in Python:
///
/// ```python
/// import numpy as np
///
/// def model_adc(seed, source, event, n):
///     u, gamma = np.uint64, np.uint64(0x9E3779B97F4A7C15)
///     def mix(z):
///         z = (z ^ (z >> u(30))) * u(0xBF58476D1CE4E5B9)
///         z = (z ^ (z >> u(27))) * u(0x94D049BB133111EB)
///         return z ^ (z >> u(31))
///     key = mix(mix(mix(np.array([seed], u)) ^ u(source)) ^ u(event))
///     i = np.arange(n, dtype=u)
///     h = mix(key + (i // u(4) + u(1)) * gamma) >> (i % u(4) * u(16))
///     noise = u(193) + (h & u(7)) + (h >> u(3) & u(7))
///     p = mix(~key + (i // u(1024) + u(1)) * gamma)
///     start, height = u(64) + (p & u(511)), u(256) + (p >> u(16) & u(1023)) + (p >> u(32) & u(511))
///     t = (i % u(1024)).astype(np.int64) - start.astype(np.int64)
///     k = np.clip(t, 0, 175).astype(u)
///     rise = height * np.clip(t + 8, 0, 8).astype(u) >> u(3)
///     tail = (height >> k // u(16)) * (u(32) - k % u(16)) >> u(5)
///     pulse = np.where(t < 0, rise, np.where(t < 176, tail, u(0)))
///     return (noise + u(2) * pulse).astype("<i2")
/// ```
///
/// To check an implementation: seed 1, source 1.2 (65538), event 3 begins with 200, 195, 204, 198, and its first 524288
/// samples have the CRC32C 0xedf7dc62.
///
/// One core writes about 5 GB/s into its cache; see `examples/adc_rate.rs`.
pub fn model_adc(seed: u64, source: SourceId, event: u64, samples: &mut [u8]) {
    let key = mix_bits(mix_bits(mix_bits(seed) ^ u64::from(source.0)) ^ event);
    let (mut noise, mut pulses) = (key, !key);
    // Window by window, so that the pulse is added to lines that are still in the nearest cache.
    for window in samples.chunks_mut(WINDOW_SAMPLES * 2) {
        add_noise(&mut noise, window);
        pulses = pulses.wrapping_add(GOLDEN_GAMMA);
        add_pulse(mix_bits(pulses), window);
    }
}

/// Returns the number of payload bytes of the model ADC's fragment number `n`, counted from 0, where its sizes go from
/// `from` to `to`; all are equally likely (to one part in 2³³). With `mix` as for [`model_adc`]:
///
/// ```text
/// length = from + mix(mix(mix(~seed) ^ source) ^ n) % (to - from + 1)
/// ```
pub fn model_payload_bytes(seed: u64, source: SourceId, n: u64, from: u64, to: u64) -> u64 {
    let drawn = mix_bits(mix_bits(mix_bits(!seed) ^ u64::from(source.0)) ^ n);
    from + drawn % to.saturating_sub(from).saturating_add(1)
}

/// Number of samples that share one pulse.
const WINDOW_SAMPLES: usize = 1024;
/// Number of samples in which a pulse rises.
const RISE_SAMPLES: usize = 8;
/// Number of samples in which a pulse's tail halves.
const HALVING_SAMPLES: usize = 16;
/// Number of halvings after which nothing is left of a height below 2048.
const HALVING_COUNT: usize = 11;

/// Sets `window` to baseline and noise, four samples at a time in one 64-bit word: no lane of it can overflow.
fn add_noise(state: &mut u64, window: &mut [u8]) {
    let mut blocks = window.chunks_exact_mut(8);
    for block in &mut blocks {
        block.copy_from_slice(&next_noise(state));
    }
    let rest = blocks.into_remainder();
    if rest.is_empty() {
        return;
    }
    let whole = rest.len() & !1;
    rest[..whole].copy_from_slice(&next_noise(state)[..whole]);
    rest[whole..].fill(0);
}

/// Returns the next four samples of baseline and noise.
#[inline]
fn next_noise(state: &mut u64) -> [u8; 8] {
    const NOISE_MASK: u64 = 0x0007_0007_0007_0007;
    const NOISE_BASELINE: u64 = 0x00c1_00c1_00c1_00c1;
    *state = state.wrapping_add(GOLDEN_GAMMA);
    let h = mix_bits(*state);
    (NOISE_BASELINE + (h & NOISE_MASK) + (h >> 3 & NOISE_MASK)).to_le_bytes()
}

/// Adds the pulse that the bits of `p` describe. Every product stays below 2¹⁶, so that the loops become 16-bit vector
/// instructions of any x86-64 or arm64.
fn add_pulse(p: u64, window: &mut [u8]) {
    let start = 64 + (p & 511) as usize;
    let height = 256 + (p >> 16 & 1023) as u16 + (p >> 32 & 511) as u16;
    let rise: [u16; RISE_SAMPLES] = std::array::from_fn(|r| 2 * ((height * r as u16) >> 3));
    add_pulse_part(window, start - RISE_SAMPLES, &rise);
    for halving in 0..HALVING_COUNT {
        let level = height >> halving;
        let tail: [u16; HALVING_SAMPLES] = std::array::from_fn(|f| 2 * ((level * (32 - f as u16)) >> 5));
        add_pulse_part(window, start + halving * HALVING_SAMPLES, &tail);
    }
}

/// Adds `pulse` to the samples from number `from` on, as far as there are any.
#[inline]
fn add_pulse_part<const N: usize>(window: &mut [u8], from: usize, pulse: &[u16; N]) {
    let samples = window.get_mut(from * 2..).unwrap_or_default();
    let end = samples.len().min(N * 2);
    for (sample, pulse) in samples[..end].chunks_exact_mut(2).zip(pulse) {
        let sum = u16::from_le_bytes([sample[0], sample[1]]) + pulse;
        sample.copy_from_slice(&sum.to_le_bytes());
    }
}

/// The model as a device.
#[derive(Debug)]
pub(crate) struct ModelAdc {
    /// Smallest and largest payload, in bytes.
    sizes: (usize, usize),
    /// Number of fragments given so far.
    given: u64,
    seed: u64,
    source: SourceId,
    period: u64,
    description: Description,
}

impl ModelAdc {
    pub(crate) fn new(config: &ModelAdcConfig) -> Result<Self, DeviceError> {
        let &ModelAdcConfig { size, size_from, seed, source, period } = config;
        let largest = checked_size("size", size, MAX_PAYLOAD_BYTES, "from 1 byte to 1 GiB")?;
        let smallest = checked_size("size_from", size_from.unwrap_or(size), largest, "from 1 byte to `size`")?;
        let source = source.unwrap_or_default();
        let description = Description {
            kind: "model-adc".to_owned(),
            payload_type: PayloadType::SAMPLES_I16.type_name().to_owned(),
            simulated: true,
            channels: Some(1),
            bits: Some(12),
            record_bytes: Some(size.0),
            record_bytes_from: size_from.map(|from| from.0),
            samples: Some(size.0 / 2),
            own: OwnFields::default().with("seed", seed).with("source", source.0).with("period", period),
            ..Default::default()
        };
        Ok(Self { sizes: (smallest, largest), given: 0, seed, source, period, description })
    }

    fn current_payload_len(&self) -> usize {
        let (from, to) = self.sizes;
        match from == to {
            true => to,
            // The length lies between two lengths in memory, so it fits a `usize`.
            false => model_payload_bytes(self.seed, self.source, self.given, from as u64, to as u64) as usize,
        }
    }
}

/// Returns the value of an option as a length in memory, from 1 to `limit` bytes.
fn checked_size(
    option: &'static str,
    ByteSize(value): ByteSize,
    limit: usize,
    expected: &'static str,
) -> Result<usize, DeviceError> {
    let size = usize::try_from(value).ok().filter(|size| (1..=limit).contains(size));
    size.ok_or(DeviceError::Setting { option, value, expected })
}

impl Device for ModelAdc {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.sizes.1
    }

    fn next_payload_bytes(&mut self) -> Option<usize> {
        Some(self.current_payload_len())
    }

    fn content_key(&self, event: EventId) -> Option<u64> {
        // Payloads of different lengths differ.
        event.0.checked_rem(self.period).filter(|_| self.sizes.0 == self.sizes.1)
    }

    fn fill_payload(&mut self, event: EventId, payload: &mut [u8]) -> Result<HeaderValues, DeviceError> {
        let expected = self.current_payload_len();
        if payload.len() != expected {
            return Err(DeviceError::Buffer { event, expected, given: payload.len() });
        }
        let waveform = event.0.checked_rem(self.period).unwrap_or(event.0);
        model_adc(self.seed, self.source, waveform, payload);
        Ok(self.skip_fragment(event))
    }

    fn skip_fragment(&mut self, _event: EventId) -> HeaderValues {
        self.given += 1;
        HeaderValues { payload_type: PayloadType::SAMPLES_I16, status: Status::SIMULATED, window: 0, timestamp: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trace(seed: u64, source: u32, event: u64, bytes: usize) -> Vec<i16> {
        let mut payload = vec![0xff; bytes];
        model_adc(seed, SourceId(source), event, &mut payload);
        payload.chunks_exact(2).map(|b| i16::from_le_bytes([b[0], b[1]])).collect()
    }

    /// The description of [`model_adc`], sample by sample and word for word.
    fn specified(seed: u64, source: u32, event: u64, i: usize) -> i16 {
        let key = mix_bits(mix_bits(mix_bits(seed) ^ u64::from(source)) ^ event);
        let nth = |key: u64, n: usize| mix_bits(key.wrapping_add((n as u64 + 1).wrapping_mul(GOLDEN_GAMMA)));
        let h = nth(key, i / 4) >> (16 * (i % 4));
        let noise = 193 + (h & 7) + (h >> 3 & 7);
        let p = nth(!key, i / 1024);
        let (start, height) = (64 + (p & 511), 256 + (p >> 16 & 1023) + (p >> 32 & 511));
        let t = (i % 1024) as i64 - start as i64;
        let pulse = match t {
            -8..0 => 2 * ((height * (t + 8) as u64) >> 3),
            0..176 => 2 * (((height >> (t / 16)) * (32 - t as u64 % 16)) >> 5),
            _ => 0,
        };
        (noise + pulse) as i16
    }

    /// Readers in other languages compute the same samples: these, which the Python above gave, may never change.
    #[test]
    fn golden_samples() {
        assert_eq!(trace(1, 0x0001_0002, 3, 32), GOLDEN);
        let long = trace(1, 0x0001_0002, 3, 1 << 20);
        let bytes: Vec<u8> = long.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        assert_eq!(thalweg_wire::crc32c(&bytes), GOLDEN_CRC);
    }

    const GOLDEN: [i16; 16] = [200, 195, 204, 198, 206, 196, 198, 199, 204, 203, 196, 200, 205, 198, 206, 197];
    const GOLDEN_CRC: u32 = 0xedf7_dc62;

    proptest! {
        #[test]
        fn is_what_its_documentation_says(seed: u64, source: u32, event: u64, bytes in 0usize..5000) {
            let trace = trace(seed, source, event, bytes);
            for (i, sample) in trace.iter().enumerate() {
                prop_assert_eq!(*sample, specified(seed, source, event, i), "sample {}", i);
                prop_assert!((193..=3787).contains(sample));
            }
        }
    }

    #[test]
    fn the_extremes_lie_where_the_documentation_says() {
        let mut window = vec![0; WINDOW_SAMPLES * 2];
        add_pulse(0x0000_01ff_03ff_0000, &mut window);
        let highest = window.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).max().unwrap();
        assert_eq!(highest + 193 + 14, 3787);
        // The latest and highest pulse has died away before its window ends.
        let mut window = vec![0; WINDOW_SAMPLES * 2];
        add_pulse(u64::MAX, &mut window);
        assert_eq!(
            window[2 * (64 + 511 + HALVING_COUNT * HALVING_SAMPLES)..],
            vec![0; 2 * (1024 - 64 - 511 - 176)][..]
        );
    }

    #[test]
    fn looks_like_a_digitizer() {
        let trace = trace(7, 0, 0, 1 << 20);
        let mean = |samples: &[i16]| samples.iter().map(|s| f64::from(*s)).sum::<f64>() / samples.len() as f64;
        // Before the earliest pulse there is only noise around the baseline.
        let quiet: Vec<i16> = trace.chunks(WINDOW_SAMPLES).flat_map(|window| window[..56].to_vec()).collect();
        assert!((mean(&quiet) - 200.0).abs() < 0.1, "{}", mean(&quiet));
        let variance = quiet.iter().map(|s| (f64::from(*s) - 200.0).powi(2)).sum::<f64>() / quiet.len() as f64;
        assert!((variance.sqrt() - 3.24).abs() < 0.05, "{}", variance.sqrt());
        assert!(trace.chunks(WINDOW_SAMPLES).all(|window| *window.iter().max().unwrap() > 193 + 2 * 248));
    }

    #[test]
    fn odd_and_tiny_sizes_end_in_a_zero_byte() {
        let mut long = vec![0; 64];
        model_adc(1, SourceId(0), 0, &mut long);
        for bytes in 0..64 {
            let mut payload = vec![0xff; bytes];
            model_adc(1, SourceId(0), 0, &mut payload);
            assert_eq!(payload[..bytes & !1], long[..bytes & !1]);
            assert!(bytes % 2 == 0 || payload[bytes - 1] == 0);
        }
    }

    fn device(size: u64, period: u64) -> Result<ModelAdc, DeviceError> {
        ModelAdc::new(&ModelAdcConfig { size: ByteSize(size), size_from: None, seed: 1, source: None, period })
    }

    #[test]
    fn sizes_are_drawn_and_can_be_computed_again() {
        let config = ModelAdcConfig {
            size: ByteSize(1000),
            size_from: Some(ByteSize(1)),
            seed: 7,
            source: Some(SourceId::new(1, 2)),
            period: 4,
        };
        let (mut one, mut other) = (ModelAdc::new(&config).unwrap(), ModelAdc::new(&config).unwrap());
        let mut lengths = Vec::new();
        for event in 0..2000 {
            let length = one.next_payload_bytes().unwrap();
            assert_eq!(length as u64, model_payload_bytes(7, SourceId::new(1, 2), event, 1, 1000));
            assert_eq!(one.content_key(EventId(event)), None);
            // One that is filled and one that is skipped go on alike; a failure changes nothing.
            assert!(one.fill_payload(EventId(event), &mut vec![0; length + 1]).is_err());
            one.fill_payload(EventId(event), &mut vec![0; length]).unwrap();
            assert_eq!(other.next_payload_bytes(), Some(length));
            other.skip_fragment(EventId(event));
            lengths.push(length);
        }
        assert!(lengths.iter().all(|length| (1..=1000).contains(length)));
        let mean = lengths.iter().sum::<usize>() / lengths.len();
        assert!((480..520).contains(&mean), "{mean}");
        // Lengths computed by the formula in Python.
        assert_eq!(lengths[..4], [647, 235, 657, 547]);
        let wrong = ModelAdcConfig { size_from: Some(ByteSize(1001)), ..config };
        assert!(ModelAdc::new(&wrong).unwrap_err().to_string().contains("size_from = 1001"));
    }

    #[test]
    fn events_of_one_key_are_alike_and_all_others_differ() {
        let mut device = device(1000, 4).unwrap();
        let mut payloads = Vec::new();
        for event in 0..8 {
            assert_eq!(device.next_payload_bytes(), Some(1000));
            assert_eq!(device.content_key(EventId(event)), Some(event % 4));
            let mut payload = vec![0; 1000];
            let filled = device.fill_payload(EventId(event), &mut payload).unwrap();
            assert_eq!(filled, device.skip_fragment(EventId(event)));
            assert_eq!(filled.status, Status::SIMULATED);
            payloads.push(payload);
        }
        assert_eq!(payloads[..4], payloads[4..]);
        assert!((0..4).all(|i| (0..i).all(|j| payloads[i] != payloads[j])));
    }

    #[test]
    fn without_a_period_every_event_is_filled() {
        let mut device = device(8, 0).unwrap();
        assert_eq!(device.content_key(EventId(5)), None);
        let (mut first, mut second) = ([0; 8], [0; 8]);
        device.fill_payload(EventId(u64::MAX), &mut first).unwrap();
        device.fill_payload(EventId(0), &mut second).unwrap();
        assert_ne!(first, second);
        assert!(matches!(
            device.fill_payload(EventId(1), &mut [0; 7]),
            Err(DeviceError::Buffer { expected: 8, given: 7, .. })
        ));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(device(0, 0).unwrap_err().to_string().contains("size = 0"));
        assert!(device((1 << 30) + 1, 0).is_err());
    }

    #[test]
    fn says_that_it_is_simulated_and_how_to_compute_it_again() {
        let json = serde_json::to_string(device(4096, 2).unwrap().description()).unwrap();
        assert_eq!(
            json,
            r#"{"kind":"model-adc","payload_type":"samples-i16","simulated":true,"replayed":false,"loop":false,"channels":1,"bits":12,"record_bytes":4096,"samples":2048,"seed":1,"source":0,"period":2}"#
        );
    }
}
