//! The camera's description of its features (GenICam), and the addresses of their registers.

/// Address at which the description begins in the camera's memory.
pub(crate) const DESCRIPTION_ADDRESS: u32 = 0x1_0000;
pub(crate) const WIDTH_REGISTER: u32 = 0xa000;
pub(crate) const HEIGHT_REGISTER: u32 = 0xa004;
pub(crate) const PIXEL_FORMAT: u32 = 0xa008;
pub(crate) const PAYLOAD_SIZE: u32 = 0xa00c;
pub(crate) const ACQUISITION_REGISTER: u32 = 0xa010;
pub(crate) const LOCKED_REGISTER: u32 = 0xa014;
pub(crate) const ACQUISITION_MODE: u32 = 0xa018;
pub(crate) const TRIGGER_MODE: u32 = 0xa01c;
pub(crate) const PTP_ENABLE: u32 = 0xa020;
pub(crate) const PTP_LATCH: u32 = 0xa024;
pub(crate) const PTP_STATUS: u32 = 0xa028;
pub(crate) const CHUNK_MODE_REGISTER: u32 = 0xa02c;
pub(crate) const EXTENDED_ID_REGISTER: u32 = 0xa030;
/// States of PTP (IEEE 1588, as SFNC names them), numbered from 0.
pub(crate) const PTP_STATES: [&str; 9] =
    ["Initializing", "Faulty", "Disabled", "Listening", "PreMaster", "Master", "Passive", "Uncalibrated", "Slave"];

/// Names and numbers of a feature's values.
type Entries<'a> = &'a [(&'a str, u32)];

/// Returns the description of a camera without faults.
pub(crate) fn description_xml() -> String {
    let (mut nodes, mut features) = (String::new(), String::new());
    let integers = [
        ("Width", WIDTH_REGISTER),
        ("Height", HEIGHT_REGISTER),
        ("PayloadSize", PAYLOAD_SIZE),
        ("TLParamsLocked", LOCKED_REGISTER),
    ];
    for (name, address) in integers {
        features += &format!("<Integer Name=\"{name}\">{}</Integer>\n", add_register(&mut nodes, name, address));
    }
    let enumerations: [(&str, u32, Entries<'_>); 4] = [
        ("PixelFormat", PIXEL_FORMAT, &[("Mono8", 0x0108_0001)]),
        ("AcquisitionMode", ACQUISITION_MODE, &[("Continuous", 0), ("SingleFrame", 1)]),
        ("TriggerMode", TRIGGER_MODE, &[("Off", 0), ("On", 1)]),
        ("GevGVSPExtendedIDMode", EXTENDED_ID_REGISTER, &[("Off", 0), ("On", 1)]),
    ];
    let states: Vec<(&str, u32)> = PTP_STATES.into_iter().zip(0..).collect();
    for (name, address, values) in enumerations.into_iter().chain([("PtpStatus", PTP_STATUS, &states[..])]) {
        let entries: String = values
            .iter()
            .map(|(entry, value)| format!("<EnumEntry Name=\"{entry}\"><Value>{value}</Value></EnumEntry>"))
            .collect();
        let value = add_register(&mut nodes, name, address);
        features += &format!("<Enumeration Name=\"{name}\">{entries}{value}</Enumeration>\n");
    }
    for (name, address) in [("PtpEnable", PTP_ENABLE), ("ChunkModeActive", CHUNK_MODE_REGISTER)] {
        let value = add_register(&mut nodes, name, address);
        features += &format!("<Boolean Name=\"{name}\">{value}<OnValue>1</OnValue><OffValue>0</OffValue></Boolean>\n");
    }
    let commands = [
        ("AcquisitionStart", ACQUISITION_REGISTER, 1),
        ("AcquisitionStop", ACQUISITION_REGISTER, 0),
        ("PtpDataSetLatch", PTP_LATCH, 1),
    ];
    for (name, address, value) in commands {
        let place = add_register(&mut nodes, name, address);
        features += &format!("<Command Name=\"{name}\">{place}<CommandValue>{value}</CommandValue></Command>\n");
    }
    let all = "<pFeature>Width</pFeature><pFeature>Height</pFeature>";
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<RegisterDescription ModelName=\"Emulated\" VendorName=\"Thalweg\" \
         StandardNameSpace=\"None\" SchemaMajorVersion=\"1\" SchemaMinorVersion=\"1\" SchemaSubMinorVersion=\"0\" \
         MajorVersion=\"1\" MinorVersion=\"0\" SubMinorVersion=\"0\" ToolTip=\"\" ProductGuid=\"0\" VersionGuid=\"0\" \
         xmlns=\"http://www.genicam.org/GenApi/Version_1_1\">\n<Category Name=\"Root\">{all}</Category>\n\
         {features}{nodes}<Port Name=\"Device\"/>\n</RegisterDescription>\n"
    )
}

/// Adds a register of 32 bits to the description's nodes. Returns the element by which a feature refers to it.
fn add_register(nodes: &mut String, name: &str, address: u32) -> String {
    *nodes += &format!(
        "<IntReg Name=\"{name}Register\"><Address>0x{address:x}</Address><Length>4</Length>\
         <AccessMode>RW</AccessMode><pPort>Device</pPort><Cachable>NoCache</Cachable><Sign>Unsigned</Sign>\
         <Endianess>BigEndian</Endianess></IntReg>\n"
    );
    format!("<pValue>{name}Register</pValue>")
}
